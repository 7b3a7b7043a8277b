// MLX's fused operations, and two more. On the CPU MLX has none of its own but graphs of many small operations, each of which costs
// microseconds of bookkeeping; there, the usual cases are one node each, and whatever is unusual or wrong goes to MLX.
// MLX_CPU_KERNELS=off (see sgemm.cpp) sends everything there. Gradients and vmap are those of MLX's graphs.
#include "mlx/fast.h"

#include "fused/node.h"
#include "guard.h"
#include "settings.h"

namespace {

using namespace mlxrs;

bool fuses(mx::Stream s) {
  static const bool wanted = kernels_wanted();
  return wanted && s.device == mx::Device::cpu;
}

std::optional<mx::array> optional(mlx_array a) {
  return a.ctx != nullptr ? std::make_optional(mlx_array_get_(a)) : std::nullopt;
}

} // namespace

extern "C" int mlxrs_fast_rms_norm(mlx_array* res, mlx_array x, mlx_array weight, float eps, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    auto scale = optional(weight);
    auto y = fuses(stream) ? fused::rms_norm(in, scale, eps, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : mx::fast::rms_norm(in, scale, eps, stream));
  });
}

extern "C" int mlxrs_fast_rope(
    mlx_array* res,
    mlx_array x,
    int dims,
    bool traditional,
    mlx_optional_float base,
    float scale,
    mlx_array offset,
    mlx_array freqs,
    mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &at = mlx_array_get_(offset);
    auto theta = base.has_value ? std::make_optional(base.value) : std::nullopt;
    auto periods = optional(freqs);
    auto y = fuses(stream) ? fused::rope(in, {dims, traditional, theta, scale}, at, periods, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : mx::fast::rope(in, dims, traditional, theta, scale, at, periods, stream));
  });
}

extern "C" int mlxrs_fast_attention(
    mlx_array* res,
    mlx_array queries,
    mlx_array keys,
    mlx_array values,
    float scale,
    const char* mask_mode,
    mlx_array mask_array,
    mlx_array sinks,
    mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &q = mlx_array_get_(queries), &k = mlx_array_get_(keys), &v = mlx_array_get_(values);
    std::string mode(mask_mode);
    auto mask = optional(mask_array);
    auto y = fuses(stream) && sinks.ctx == nullptr ? fused::attention(q, k, v, scale, mode, mask, stream) : std::nullopt;
    mlx_array_set_(
        *res,
        y ? *y : mx::fast::scaled_dot_product_attention(q, k, v, scale, mode, mask, optional(sinks), false, stream));
  });
}

extern "C" int mlxrs_fast_linear(mlx_array* res, mlx_array x, mlx_array weight, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &w = mlx_array_get_(weight);
    auto y = fuses(stream) ? fused::linear(in, w, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : mx::matmul(in, mx::swapaxes(w, -1, -2, stream), stream));
  });
}

extern "C" int mlxrs_fast_swiglu(mlx_array* res, mlx_array gate, mlx_array up, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &a = mlx_array_get_(gate), &b = mlx_array_get_(up);
    auto y = fuses(stream) ? fused::swiglu(a, b, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : mx::multiply(mx::multiply(a, mx::sigmoid(a, stream), stream), b, stream));
  });
}
