// Routers and weighted sums as graphs of MLX's operations.
#include <limits>

#include "route.h"

namespace mlxrs::ops {
namespace {

// The elements from `from` to `to` of the last axis.
mx::array part(const mx::array& x, int from, int to, mx::Stream s) {
  mx::Shape start(x.ndim(), 0), stop = x.shape();
  start.back() = from, stop.back() = to;
  return mx::slice(x, start, stop, s);
}

// choice [N, E] with minus infinity for the experts outside of the `top_groups` best groups.
mx::array only_best(const mx::array& choice, const RouteOptions& options, mx::Stream s) {
  int n = choice.shape(0), count = choice.shape(1), size = count / options.groups, others = options.groups - options.top_groups;
  auto grouped = mx::reshape(choice, {n, options.groups, size}, s);
  if (others == 0) {
    return choice;
  }
  auto best = options.two_best ? mx::sum(part(mx::sort(grouped, -1, s), size - 2, size, s), -1, false, s)
                               : mx::max(grouped, -1, false, s);
  auto worst = mx::expand_dims(part(mx::argpartition(best, others - 1, -1, s), 0, others, s), -1, s);
  auto lowest = mx::array(-std::numeric_limits<float>::infinity());
  mx::Shape shape{n, others, size};
  auto left = mx::put_along_axis(grouped, mx::broadcast_to(worst, shape, s), mx::broadcast_to(lowest, shape, s), 1, s);
  return mx::reshape(left, {n, count}, s);
}

} // namespace

Arrays route_plainly(
    const mx::array& scores, const std::optional<mx::array>& correction, const RouteOptions& options, mx::Stream s) {
  auto wide = mx::astype(scores, mx::float32, s);
  auto probs = options.sigmoid ? mx::sigmoid(wide, s) : mx::softmax(wide, std::vector<int>{-1}, true, s);
  auto choice = correction ? mx::add(probs, *correction, s) : probs;
  if (options.groups > 0) {
    choice = only_best(choice, options, s);
  }
  // The choice of experts has no gradient. The gradient flows through the weights.
  auto order = mx::argpartition(mx::negative(choice, s), options.top_k - 1, -1, s);
  auto experts = mx::stop_gradient(part(order, 0, options.top_k, s), s);
  auto weights = mx::take_along_axis(probs, experts, -1, s);
  if (options.norm) {
    auto sum = mx::sum(weights, -1, true, s);
    if (options.added > 0) {
      sum = mx::add(sum, mx::array(options.added), s);
    }
    if (options.least_sum > 0) {
      sum = mx::maximum(sum, mx::array(options.least_sum), s);
    }
    weights = mx::divide(weights, sum, s);
  }
  if (options.scale != 1) {
    weights = mx::multiply(weights, mx::array(options.scale), s);
  }
  return {experts, weights};
}

mx::array weighted_sum_plainly(const mx::array& y, const mx::array& weights, mx::Stream s) {
  auto factors = mx::expand_dims(mx::astype(weights, y.dtype(), s), -1, s);
  return mx::sum(mx::multiply(y, factors, s), -2, false, s);
}

} // namespace mlxrs::ops
