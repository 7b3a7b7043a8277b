#include "gated.h"
#include "ops/border.h"
#include "ops/linear/border.h"

using namespace mlxrs;

namespace {

ops::Gate gate_of(mlxrs_gate kind) {
  if (kind != MLXRS_GATE_SILU && kind != MLXRS_GATE_GELU_TANH) {
    throw std::invalid_argument("unknown gate " + std::to_string(static_cast<int>(kind)));
  }
  return static_cast<ops::Gate>(kind);
}

mx::array gate_in_form(ops::Gate kind, const mx::array& x, const mx::array& up, mx::Stream s) {
  return ops::run(
      MLXRS_OP_GATED, s, [&] { return ops::gated(kind, x, up, s); }, [&] { return ops::gated_plainly(kind, x, up, s); });
}

} // namespace

extern "C" int mlxrs_fast_gated(mlx_array* res, mlxrs_gate kind, mlx_array gate, mlx_array up, mlx_stream s) {
  return guarded([&] {
    mlx_array_set_(*res, gate_in_form(gate_of(kind), mlx_array_get_(gate), mlx_array_get_(up), mlx_stream_get_(s)));
  });
}

extern "C" int mlxrs_fast_gated_linear(
    mlx_array* res, mlxrs_gate kind, mlx_array x, mlxrs_matrix gate, mlxrs_matrix up, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(x);
    std::array ws{ops::parts_of(gate), ops::parts_of(up)};
    auto by = gate_of(kind);
    auto y = ops::run(
        MLXRS_OP_LINEAR, stream, [&] { return ops::gated_linear(by, in, ws, stream); },
        [&] {
          auto both = ops::linear_many_in_form(in, {ws[0], ws[1]}, stream);
          return gate_in_form(by, both[0], both[1], stream);
        });
    mlx_array_set_(*res, y);
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
