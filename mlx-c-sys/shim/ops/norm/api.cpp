// The C functions of RMS norms.
#include "norm.h"
#include "ops/border.h"

using namespace mlxrs;

extern "C" int mlxrs_fast_rms_norm(mlx_array* res, mlx_array x, mlx_array weight, float eps, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    auto scale = ops::optional(weight);
    auto y = ops::run(
        MLXRS_OP_NORM, stream, [&] { return ops::rms_norm(in, scale, eps, stream); },
        [&] { return ops::rms_norm_plainly(in, scale, eps, stream); });
    mlx_array_set_(*res, y);
  });
}

extern "C" int mlxrs_fast_add_norm(
    mlx_array* sum,
    mlx_array* normed,
    mlx_array x,
    mlx_array residual,
    mlx_array inner,
    mlx_array outer,
    float eps,
    mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    ops::AddNormInputs of{mlx_array_get_(x), mlx_array_get_(residual), ops::optional(inner), ops::optional(outer), eps};
    auto out = ops::run(
        MLXRS_OP_NORM, stream, [&] { return ops::add_norm(of, stream); }, [&] { return ops::add_norm_plainly(of, stream); });
    mlx_array_set_(*sum, out.at(0));
    mlx_array_set_(*normed, out.back());
  });
}
