// Products with matrices in the form that a stream has (ops/form.h).
#include "linear.h"

namespace mlxrs::ops {

mx::array linear_in_form(const mx::array& x, const Parts& w, mx::Stream s) {
  return run(MLXRS_OP_LINEAR, s, [&] { return linear(x, w, s); }, [&] { return linear_plainly(x, w, s); });
}

Arrays linear_many_in_form(const mx::array& x, const std::vector<Parts>& ws, mx::Stream s) {
  return run(MLXRS_OP_LINEAR, s, [&] { return linear_many(x, ws, s); }, [&] {
    Arrays ys;
    for (const auto& w : ws) {
      ys.push_back(linear_in_form(x, w, s));
    }
    return ys;
  });
}

} // namespace mlxrs::ops
