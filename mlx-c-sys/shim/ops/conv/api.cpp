// The C functions of causal convolutions.
#include "conv.h"
#include "ops/border.h"

using namespace mlxrs;

namespace {

ops::Arrays inputs(mlx_array x, mlx_array taps, mlx_array bias) {
  ops::Arrays in{mlx_array_get_(x), mlx_array_get_(taps)};
  if (bias.ctx != nullptr) {
    in.push_back(mlx_array_get_(bias));
  }
  return in;
}

} // namespace

extern "C" int mlxrs_fast_causal_conv(mlx_array* res, mlx_array x, mlx_array taps, mlx_array bias, bool silu, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    auto in = inputs(x, taps, bias);
    auto y = ops::run(
        MLXRS_OP_CONV, stream, [&] { return ops::causal_conv(in, silu, stream); },
        [&] { return ops::causal_conv_plainly(in, silu, stream); });
    mlx_array_set_(*res, y);
  });
}

extern "C" int mlxrs_fast_ragged_conv(
    mlx_vector_array* res, mlx_array x, mlx_array taps, mlx_array bias, bool silu, mlxrs_ragged of, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    auto in = inputs(x, taps, bias);
    auto rows = ops::Ragged::of(of);
    auto out = ops::run(
        MLXRS_OP_CONV, stream, [&] { return ops::ragged_conv(in, silu, rows, stream); },
        [&] { return rows.stored(ops::ragged_conv_plainly(in, silu, rows, stream), stream); });
    mlx_vector_array_set_(*res, out);
  });
}
