// Gates and soft caps as graphs of MLX's operations.
#include <cmath>

#include "gated.h"

namespace mlxrs::ops {

mx::array gated_plainly(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s) {
  if (gate == Gate::silu) {
    return mx::multiply(mx::multiply(x, mx::sigmoid(x, s), s), up, s);
  }
  auto number = [&](double value) { return mx::array(static_cast<float>(value), x.dtype()); };
  auto cubic = mx::multiply(mx::multiply(mx::multiply(x, x, s), x, s), number(0.044715), s);
  auto inner = mx::multiply(mx::add(x, cubic, s), number(std::sqrt(2 / 3.14159265358979)), s);
  auto half = mx::multiply(mx::add(mx::tanh(inner, s), number(1), s), number(0.5), s);
  return mx::multiply(mx::multiply(x, half, s), up, s);
}

mx::array gate_in_form(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s) {
  return run(MLXRS_OP_GATED, s, [&] { return gated(gate, x, up, s); }, [&] { return gated_plainly(gate, x, up, s); });
}

mx::array gated_linear_in_form(Gate gate, const mx::array& x, const std::array<Parts, 2>& ws, mx::Stream s) {
  return run(MLXRS_OP_LINEAR, s, [&] { return gated_linear(gate, x, ws, s); }, [&] {
    auto both = linear_many_in_form(x, {ws[0], ws[1]}, s);
    return gate_in_form(gate, both[0], both[1], s);
  });
}

mx::array soft_cap_plainly(const mx::array& x, float cap, mx::Stream s) {
  auto number = mx::array(cap, x.dtype());
  return mx::multiply(mx::tanh(mx::divide(x, number, s), s), number, s);
}

} // namespace mlxrs::ops
