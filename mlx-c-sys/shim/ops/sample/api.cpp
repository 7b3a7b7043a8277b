// The C functions of sampling.
#include "ops/border.h"
#include "sample.h"

using namespace mlxrs;

extern "C" int mlxrs_fast_argmax(mlx_array* res, mlx_array x, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    auto y = ops::run(
        MLXRS_OP_SAMPLE, stream, [&] { return ops::argmax(in, stream); }, [&] { return ops::argmax_plainly(in, stream); });
    mlx_array_set_(*res, y);
  });
}

extern "C" int mlxrs_fast_logsumexp(mlx_array* res, mlx_array x, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    auto y = ops::run(
        MLXRS_OP_SAMPLE, stream, [&] { return ops::logsumexp(in, stream); },
        [&] { return ops::logsumexp_plainly(in, stream); });
    mlx_array_set_(*res, y);
  });
}

extern "C" int mlxrs_fast_top(mlx_array* ids, mlx_array* values, mlx_array x, int n, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    auto both = ops::run(
        MLXRS_OP_SAMPLE, stream, [&] { return ops::top(in, n, stream); },
        [&] { return ops::top_plainly(in, n, stream); });
    mlx_array_set_(*ids, both.at(0));
    mlx_array_set_(*values, both.at(1));
  });
}

extern "C" int mlxrs_fast_nucleus(mlx_array* res, mlx_array x, mlx_array p, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &sum = mlx_array_get_(p);
    auto y = ops::run(
        MLXRS_OP_SAMPLE, stream, [&] { return ops::nucleus(in, sum, stream); },
        [&] { return ops::nucleus_plainly(in, sum, stream); });
    mlx_array_set_(*res, y);
  });
}

extern "C" int mlxrs_fast_draw(
    mlx_array* ids, mlx_array* checked, mlx_array x, mlx_array keys, mlx_array numbers, mlx_array counts, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    auto none = []() -> ops::Arrays {
      throw std::invalid_argument("a draw needs the CPU's kernels, and logits [B, V] of floating point");
    };
    auto y = ops::run(
        MLXRS_OP_SAMPLE, stream,
        [&] {
          return ops::draw(
              mlx_array_get_(x), mlx_array_get_(keys), mlx_array_get_(numbers), mlx_array_get_(counts), stream);
        },
        none);
    mlx_array_set_(*ids, y.at(0));
    mlx_array_set_(*checked, y.at(1));
  });
}
