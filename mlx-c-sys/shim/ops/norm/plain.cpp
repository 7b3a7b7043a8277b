// RMS norms as graphs of MLX's operations.
#include "mlx/fast.h"

#include "norm.h"

namespace mlxrs::ops {

mx::array rms_norm_plainly(const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s) {
  return mx::fast::rms_norm(x, weight, eps, s);
}

Arrays add_norm_plainly(const AddNormInputs& of, mx::Stream s) {
  auto x = of.inner ? rms_norm_plainly(of.x, of.inner, of.eps, s) : of.x;
  Arrays out{mx::add(of.residual, x, s)};
  if (of.outer) {
    out.push_back(rms_norm_plainly(out[0], of.outer, of.eps, s));
  }
  return out;
}

mx::array rms_norm_in_form(const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s) {
  return run(MLXRS_OP_NORM, s, [&] { return rms_norm(x, weight, eps, s); }, [&] { return rms_norm_plainly(x, weight, eps, s); });
}

Arrays add_norm_in_form(const AddNormInputs& of, mx::Stream s) {
  return run(MLXRS_OP_NORM, s, [&] { return add_norm(of, s); }, [&] {
    if (!of.outer) {
      return add_norm_plainly(of, s);
    }
    // The sum and its norm apart, each in the best form that takes it.
    auto out = add_norm_in_form({of.x, of.residual, of.inner, std::nullopt, of.eps}, s);
    out.push_back(rms_norm_in_form(out[0], of.outer, of.eps, s));
    return out;
  });
}

} // namespace mlxrs::ops
