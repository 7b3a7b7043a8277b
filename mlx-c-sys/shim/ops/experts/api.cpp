#include "experts.h"
#include "ops/gated/border.h"
#include "ops/linear/border.h"

using namespace mlxrs;

namespace {

mx::array experts_in_form(const mx::array& x, const ops::Parts& w, const mx::array& indices, mx::Stream s) {
  // The product in the form (node or plain) that the stream runs.
  return ops::run(
      MLXRS_OP_EXPERTS, s, [&] { return ops::experts(x, w, indices, s); },
      [&] { return ops::experts_plainly(x, w, indices, s); });
}

} // namespace

extern "C" int mlxrs_fast_experts(mlx_array* res, mlx_array x, mlxrs_matrix w, mlx_array indices, mlx_stream s) {
  return guarded([&] {
    auto y = experts_in_form(mlx_array_get_(x), ops::parts_of(w), mlx_array_get_(indices), mlx_stream_get_(s));
    mlx_array_set_(*res, y);
  });
}

extern "C" int mlxrs_fast_gated_experts(
    mlx_array* res, mlxrs_gate kind, mlx_array x, mlxrs_matrix gate, mlxrs_matrix up, mlx_array indices, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(x), &which = mlx_array_get_(indices);
    std::array ws{ops::parts_of(gate), ops::parts_of(up)};
    auto by = ops::gate_of(kind);
    auto y = ops::run(
        MLXRS_OP_EXPERTS, stream, [&] { return ops::gated_experts(by, in, ws, which, stream); },
        [&] {
          auto product = [&](const ops::Parts& w) { return experts_in_form(in, w, which, stream); };
          return ops::gate_in_form(by, product(ws[0]), product(ws[1]), stream);
        });
    mlx_array_set_(*res, y);
  });
}
