#include "delta.h"
#include "ops/border.h"

using namespace mlxrs;

extern "C" int mlxrs_fast_gated_delta(mlx_array* y, mlx_array* after, mlxrs_gated_delta of, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    ops::DeltaInputs in{
        mlx_array_get_(of.qkv), mlx_array_get_(of.a),     mlx_array_get_(of.b),     mlx_array_get_(of.rate),
        mlx_array_get_(of.bias), mlx_array_get_(of.state), mlx_array_get_(of.widths)};
    auto out = ops::run(
        MLXRS_OP_DELTA, stream, [&] { return ops::gated_delta(in, of.key_heads, stream); },
        [&] { return ops::gated_delta_plainly(in, of.key_heads, stream); });
    mlx_array_set_(*y, out.at(0));
    mlx_array_set_(*after, out.at(1));
  });
}
