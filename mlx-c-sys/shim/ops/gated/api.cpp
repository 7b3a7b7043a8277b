// The C functions of gates and soft caps.
#include "border.h"
#include "ops/border.h"
#include "ops/linear/border.h"

using namespace mlxrs;

extern "C" int mlxrs_fast_gated(mlx_array* res, mlxrs_gate kind, mlx_array gate, mlx_array up, mlx_stream s) {
  return guarded([&] {
    mlx_array_set_(*res, ops::gate_in_form(ops::gate_of(kind), mlx_array_get_(gate), mlx_array_get_(up), mlx_stream_get_(s)));
  });
}

extern "C" int mlxrs_fast_gated_linear(
    mlx_array* res, mlxrs_gate kind, mlx_array x, mlxrs_matrix gate, mlxrs_matrix up, mlx_stream s) {
  return guarded([&] {
    std::array ws{ops::parts_of(gate), ops::parts_of(up)};
    mlx_array_set_(*res, ops::gated_linear_in_form(ops::gate_of(kind), mlx_array_get_(x), ws, mlx_stream_get_(s)));
  });
}

extern "C" int mlxrs_fast_soft_cap(mlx_array* res, mlx_array x, float cap, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    auto y = ops::run(
        MLXRS_OP_GATED, stream, [&] { return ops::soft_cap(in, cap, stream); },
        [&] { return ops::soft_cap_plainly(in, cap, stream); });
    mlx_array_set_(*res, y);
  });
}
