// MLX's fused operations, and more. On the CPU MLX has none of its own but graphs of many small operations, each of which
// costs microseconds of bookkeeping; there, the usual cases are one node each, and whatever is unusual or wrong goes to MLX.
// MLX_CPU_KERNELS=off (see sgemm.cpp) sends everything there. Derivatives in f32 that training needs are
// nodes too (fused/derivatives.cpp); others, and vmap, are those of MLX's graphs.
#include "mlx/fast.h"

#include "fused/operations.h"
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

mx::array rope_of_mlx(
    const mx::array& x,
    const fused::RopeOptions& options,
    const mx::array& offset,
    const std::optional<mx::array>& freqs,
    mx::Stream s) {
  const auto& [dims, traditional, base, scale] = options;
  if (s.device != mx::Device::gpu) {
    return mx::fast::rope(x, dims, traditional, base, scale, offset, freqs, s);
  }
  // On CUDA MLX 0.32.4 takes an offset for each row of x from an array of one, and turns what is repeated along its tokens wrongly.
  auto at = offset.size() == 1 ? mx::reshape(offset, {}, s) : offset;
  return mx::fast::rope(mx::contiguous(x, false, s), dims, traditional, base, scale, at, freqs, s);
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
    fused::RopeOptions options{dims, traditional, base.has_value ? std::make_optional(base.value) : std::nullopt, scale};
    auto periods = optional(freqs);
    auto y = fuses(stream) ? fused::rope(in, options, at, periods, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : rope_of_mlx(in, options, at, periods, stream));
  });
}

extern "C" int mlxrs_fast_attention(
    mlx_array* res,
    mlx_array queries,
    mlx_array keys,
    mlx_array values,
    float scale,
    float soft_cap,
    int seen,
    int layout,
    int window,
    int bits,
    int group_size,
    mlx_array told,
    mlx_array sinks,
    mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &q = mlx_array_get_(queries), &k = mlx_array_get_(keys), &v = mlx_array_get_(values);
    fused::AttentionOptions options{
        scale, soft_cap, static_cast<fused::Seen>(seen), static_cast<fused::Layout>(layout), window,
        fused::row_packing(bits, group_size)};
    bool is_told = options.seen == fused::Seen::masked || options.seen == fused::Seen::placed;
    if (seen < 0 || seen > 3 || layout < 0 || layout > 2 || is_told != (told.ctx != nullptr)) {
      throw std::invalid_argument("attention: seen, layout and told do not fit each other");
    }
    auto mask = optional(told), extra = optional(sinks);
    auto y = fuses(stream) ? fused::attention(q, k, v, options, mask, extra, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : fused::attention_plainly(q, k, v, options, mask, extra, stream));
  });
}

extern "C" int mlxrs_fast_kernels(bool* res, mlx_stream s) {
  return guarded([&] { *res = fuses(mlx_stream_get_(s)); });
}

extern "C" int mlxrs_fast_linear(mlx_array* res, mlx_array x, mlx_array weight, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &w = mlx_array_get_(weight);
    auto y = fuses(stream) ? fused::linear(in, w, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : mx::matmul(in, mx::swapaxes(w, -1, -2, stream), stream));
  });
}

extern "C" int mlxrs_fast_experts(
    mlx_array* res,
    mlx_array x,
    mlx_array weight,
    mlx_array scales,
    mlx_array biases,
    mlx_array indices,
    int group_size,
    int bits,
    const char* mode,
    mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &which = mlx_array_get_(indices);
    fused::Parts w{mlx_array_get_(weight), optional(scales), optional(biases), {group_size, bits, mode}};
    auto y = fuses(stream) ? fused::experts(in, w, which, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : fused::experts_plainly(in, w, which, stream));
  });
}

extern "C" int mlxrs_fast_blank(mlx_array* res, const int* shape, size_t shape_num, mlx_dtype dtype, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    mx::Shape sizes(shape, shape + shape_num);
    auto type = dtype_of(dtype);
    mlx_array_set_(*res, fuses(stream) ? fused::blank(sizes, type, stream) : mx::zeros(sizes, type, stream));
  });
}

extern "C" int mlxrs_fast_lookup(
    mlx_array* res,
    mlx_array indices,
    mlx_array weight,
    mlx_array scales,
    mlx_array biases,
    int group_size,
    int bits,
    const char* mode,
    mlx_dtype dtype,
    mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& which = mlx_array_get_(indices);
    fused::Parts w{mlx_array_get_(weight), optional(scales), optional(biases), {group_size, bits, mode}};
    auto type = dtype_of(dtype);
    auto y = fuses(stream) ? fused::lookup(which, w, type, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : fused::lookup_plainly(which, w, type, stream));
  });
}

extern "C" int mlxrs_fast_packed_linear(
    mlx_array* res,
    mlx_array x,
    mlx_array packed,
    mlx_array scales,
    mlx_array biases,
    int group_size,
    int bits,
    const char* mode,
    mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &w = mlx_array_get_(packed), &factors = mlx_array_get_(scales);
    auto added = optional(biases);
    fused::Packing packing{group_size, bits, mode};
    auto y = fuses(stream) ? fused::packed_linear(in, w, factors, added, packing, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : fused::packed_plainly(in, w, factors, added, packing, stream));
  });
}

extern "C" int mlxrs_fast_together(mlx_vector_array* res, mlx_vector_array products, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& apart = mlx_vector_array_get_(products);
    mlx_vector_array_set_(*res, fuses(stream) ? fused::together(apart, stream) : apart);
  });
}

extern "C" int mlxrs_fast_gated(mlx_array* res, bool gelu, mlx_array gate, mlx_array up, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &a = mlx_array_get_(gate), &b = mlx_array_get_(up);
    auto kind = gelu ? fused::Gate::gelu_tanh : fused::Gate::silu;
    auto y = fuses(stream) ? fused::gated(kind, a, b, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : fused::gated_plainly(kind, a, b, stream));
  });
}

extern "C" int mlxrs_fast_soft_cap(mlx_array* res, mlx_array x, float cap, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    auto y = fuses(stream) ? fused::soft_cap(in, cap, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : fused::soft_cap_plainly(in, cap, stream));
  });
}

extern "C" int mlxrs_fast_add(mlx_array* res, mlx_array x, mlx_array residual, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &before = mlx_array_get_(residual);
    auto out = fuses(stream) ? fused::add_norm(in, before, std::nullopt, std::nullopt, 0, stream) : std::nullopt;
    mlx_array_set_(*res, out ? out->at(0) : mx::add(before, in, stream));
  });
}

extern "C" int mlxrs_fast_rms_norm_add(
    mlx_array* res, mlx_array x, mlx_array weight, mlx_array residual, float eps, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &before = mlx_array_get_(residual), &w = mlx_array_get_(weight);
    auto out = fuses(stream) ? fused::add_norm(in, before, w, std::nullopt, eps, stream) : std::nullopt;
    mlx_array_set_(*res, out ? out->at(0) : mx::add(before, mx::fast::rms_norm(in, w, eps, stream), stream));
  });
}

extern "C" int mlxrs_fast_add_rms_norm(
    mlx_array* sum,
    mlx_array* normed,
    mlx_array x,
    mlx_array residual,
    mlx_array inner_weight,
    mlx_array weight,
    float eps,
    mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &before = mlx_array_get_(residual), &w = mlx_array_get_(weight);
    auto inner = optional(inner_weight);
    auto out = fuses(stream) ? fused::add_norm(in, before, inner, w, eps, stream) : std::nullopt;
    if (!out) {
      auto y = mx::add(before, inner ? mx::fast::rms_norm(in, inner, eps, stream) : in, stream);
      out = {y, mx::fast::rms_norm(y, w, eps, stream)};
    }
    mlx_array_set_(*sum, out->at(0));
    mlx_array_set_(*normed, out->at(1));
  });
}

extern "C" int mlxrs_fast_heads(
    mlx_array* res,
    mlx_array x,
    int dim,
    mlx_array weight,
    float eps,
    int dims,
    mlx_array offset,
    mlx_array freqs,
    mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &at = mlx_array_get_(offset), &periods = mlx_array_get_(freqs);
    auto scale = optional(weight);
    fused::RopeOptions options{dims, false, std::nullopt, 1.0f};
    auto y = fuses(stream) ? fused::heads(in, dim, scale, eps, options, at, periods, stream) : std::nullopt;
    if (!y) {
      auto heads = mx::swapaxes(mx::unflatten(in, -1, {-1, dim}, stream), -2, -3, stream);
      if (scale) {
        heads = mx::fast::rms_norm(heads, scale, eps, stream);
      }
      y = rope_of_mlx(heads, options, at, periods, stream);
    }
    mlx_array_set_(*res, *y);
  });
}

extern "C" int mlxrs_fast_argmax(mlx_array* res, mlx_array x, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    auto y = fuses(stream) ? fused::argmax(in, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : mx::argmax(in, -1, false, stream));
  });
}

extern "C" int mlxrs_fast_logsumexp(mlx_array* res, mlx_array x, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    auto y = fuses(stream) ? fused::logsumexp(in, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : fused::logsumexp_plainly(in, stream));
  });
}

extern "C" int mlxrs_fast_top(mlx_array* ids, mlx_array* values, mlx_array x, int n, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    auto y = fuses(stream) ? fused::top(in, n, stream) : std::nullopt;
    auto both = y ? *y : fused::top_plainly(in, n, stream);
    mlx_array_set_(*ids, both.at(0));
    mlx_array_set_(*values, both.at(1));
  });
}

extern "C" int mlxrs_fast_nucleus(mlx_array* res, mlx_array x, mlx_array p, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &sum = mlx_array_get_(p);
    auto y = fuses(stream) ? fused::nucleus(in, sum, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : fused::nucleus_plainly(in, sum, stream));
  });
}

extern "C" int mlxrs_fast_draw(
    mlx_array* res, mlx_array x, mlx_array keys, mlx_array numbers, mlx_array counts, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    auto y = fuses(stream)
        ? fused::draw(in, mlx_array_get_(keys), mlx_array_get_(numbers), mlx_array_get_(counts), stream)
        : std::nullopt;
    if (!y) {
      throw std::invalid_argument("a draw needs the CPU's kernels, and logits [B, V] of floating point");
    }
    mlx_array_set_(*res, *y);
  });
}

extern "C" int mlxrs_fast_store(
    mlx_array* first,
    mlx_array* second,
    mlx_array first_buffer,
    mlx_array second_buffer,
    mlx_array first_new,
    mlx_array second_new,
    mlx_array offsets,
    int bits,
    int group_size,
    bool ring,
    bool in_place,
    mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    auto packing = fused::row_packing(bits, group_size);
    fused::Arrays in;
    for (mlx_array a : {first_buffer, second_buffer, first_new, second_new, offsets}) {
      in.push_back(mlx_array_get_(a));
    }
    auto out = fuses(stream) ? fused::store(in, packing, ring, in_place, stream)
                             : fused::store_plainly(in, packing, ring, stream);
    mlx_array_set_(*first, out.at(0));
    mlx_array_set_(*second, out.at(1));
  });
}

extern "C" int mlxrs_fast_pack(mlx_array* res, mlx_array x, int bits, int group_size, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    auto packing = fused::row_packing(bits, group_size);
    auto pack = fuses(stream) ? fused::pack : fused::pack_plainly;
    mlx_array_set_(*res, pack(mlx_array_get_(x), packing, stream));
  });
}

extern "C" int mlxrs_fast_cross_entropy(mlx_array* res, mlx_array logits, mlx_array targets, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &x = mlx_array_get_(logits), &t = mlx_array_get_(targets);
    auto y = fuses(stream) ? fused::cross_entropy(x, t, stream) : std::nullopt;
    mlx_array_set_(*res, y ? *y : mx::fast::cross_entropy(x, t, stream));
  });
}
