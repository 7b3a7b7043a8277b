// The C functions of products with the norm of x.
#include "norm_linear.h"
#include "ops/gated/border.h"
#include "ops/linear/border.h"

using namespace mlxrs;

namespace {

void norm_linear(
    mlx_vector_array* res, const mlxrs_norm& norm, std::vector<ops::Parts> ws, std::optional<ops::Gate> gate, mlx_stream s) {
  auto stream = mlx_stream_get_(s);
  ops::NormLinearInputs of{
      mlx_array_get_(norm.x), ops::optional(norm.residual), ops::optional(norm.inner), ops::optional(norm.weight), norm.eps,
      std::move(ws), gate};
  bool has_norm = ops::form(MLXRS_OP_NORM, stream) != ops::Form::plain;
  auto out = ops::run(
      MLXRS_OP_LINEAR, stream, [&] { return has_norm ? ops::norm_linear(of, stream) : std::nullopt; },
      [&] { return ops::norm_linear_apart(of, stream); });
  mlx_vector_array_set_(*res, out);
}

} // namespace

extern "C" int mlxrs_fast_norm_linear(mlx_vector_array* res, mlxrs_norm norm, const mlxrs_matrix* ws, size_t n, mlx_stream s) {
  return guarded([&] {
    std::vector<ops::Parts> all;
    for (size_t i = 0; i < n; i++) {
      all.push_back(ops::parts_of(ws[i]));
    }
    norm_linear(res, norm, std::move(all), std::nullopt, s);
  });
}

extern "C" int mlxrs_fast_norm_gated_linear(
    mlx_vector_array* res, mlxrs_gate kind, mlxrs_norm norm, mlxrs_matrix gate, mlxrs_matrix up, mlx_stream s) {
  return guarded([&] { norm_linear(res, norm, {ops::parts_of(gate), ops::parts_of(up)}, ops::gate_of(kind), s); });
}
