// The C functions of rotary embeddings and of projections that become heads.
#include "border.h"

using namespace mlxrs;

extern "C" int mlxrs_fast_rope(
    mlx_array* res, mlx_array x, mlx_array offset, mlx_array freqs, mlxrs_rope_options options, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &at = mlx_array_get_(offset);
    const auto& [dims, traditional, base, scale] = options;
    ops::RopeOptions how{dims, traditional, base.has_value ? std::make_optional(base.value) : std::nullopt, scale};
    auto periods = ops::optional(freqs);
    auto y = ops::run(
        MLXRS_OP_ROPE, stream, [&] { return ops::rope(in, how, at, periods, stream); },
        [&] { return ops::rope_plainly(in, how, at, periods, stream); });
    mlx_array_set_(*res, y);
  });
}

extern "C" int mlxrs_fast_heads(mlx_array* res, mlxrs_projection of, mlx_stream s) {
  return guarded([&] {
    mlx_array_set_(*res, ops::heads_in_form(ops::projection_of(of), mlx_stream_get_(s)));
  });
}
