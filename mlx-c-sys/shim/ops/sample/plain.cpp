// Reductions over a vocabulary as graphs of MLX's operations.
#include <limits>

#include "sample.h"

namespace mlxrs::ops {

mx::array argmax_plainly(const mx::array& x, mx::Stream s) {
  return mx::argmax(x, -1, false, s);
}

mx::array logsumexp_plainly(const mx::array& x, mx::Stream s) {
  return mx::logsumexp(mx::astype(x, mx::float32, s), -1, false, s);
}

Arrays top_plainly(const mx::array& x, int n, mx::Stream s) {
  // A stable sort, because a partition does not define which of several equal values it keeps.
  auto order = mx::argsort(mx::negative(x, s), -1, s);
  auto end = order.shape();
  end.back() = n;
  order = mx::slice(order, mx::Shape(end.size(), 0), end, s);
  return {order, mx::take_along_axis(x, order, -1, s)};
}

mx::array nucleus_plainly(const mx::array& x, const mx::array& p, mx::Stream s) {
  auto sorted = mx::negative(mx::sort(mx::negative(x, s), -1, s), s);
  auto probabilities = mx::exp(mx::subtract(sorted, mx::logsumexp(x, -1, true, s), s), s);
  auto inside = mx::less(mx::cumsum(probabilities, -1, false, false, s), p, s);
  auto infinity = mx::array(std::numeric_limits<float>::infinity());
  return mx::min(mx::where(inside, sorted, infinity, s), -1, true, s);
}

} // namespace mlxrs::ops
