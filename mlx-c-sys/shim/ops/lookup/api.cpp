// The C function that reads rows of a matrix.
#include "lookup.h"
#include "ops/linear/border.h"

using namespace mlxrs;

extern "C" int mlxrs_fast_lookup(
    mlx_array* res, mlx_array indices, mlxrs_matrix w, mlx_dtype dtype, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& which = mlx_array_get_(indices);
    auto parts = ops::parts_of(w);
    auto type = dtype_of(dtype);
    auto y = ops::run(
        MLXRS_OP_LOOKUP, stream, [&] { return ops::lookup(which, parts, type, stream); },
        [&] { return ops::lookup_plainly(which, parts, type, stream); });
    mlx_array_set_(*res, y);
  });
}
