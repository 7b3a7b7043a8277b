// Routers of mixtures of experts: the choice of experts for each token, their weights, and the weighted sum of their
// outputs.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// The options of mlxrs_route_options (mlxrs_fast.h).
struct RouteOptions {
  int top_k;
  bool sigmoid, norm;
  float added, least_sum, scale; // scale 1 has no effect
  int groups, top_groups; // groups 0: experts have no groups
  bool two_best;

  bool operator==(const RouteOptions&) const = default;
};

// Returns the chosen experts, U32 [N, top_k], and their weights, F32 [N, top_k], for scores [N, E]. `correction` [E] is
// added to the probabilities for the choice, and not to the weights.
std::optional<Arrays> route(
    const mx::array& scores, const std::optional<mx::array>& correction, const RouteOptions& options, mx::Stream s);
Arrays route_plainly(
    const mx::array& scores, const std::optional<mx::array>& correction, const RouteOptions& options, mx::Stream s);

// sum over k of y[n, k] weights[n, k]: y [N, K, E] and weights F32 [N, K] give [N, E].
std::optional<mx::array> weighted_sum(const mx::array& y, const mx::array& weights, mx::Stream s);
mx::array weighted_sum_plainly(const mx::array& y, const mx::array& weights, mx::Stream s);

} // namespace mlxrs::ops
