// Routers of experts: which experts a token is sent to, their weights, and the sum of their outputs.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// How experts are chosen and weighted: mlxrs_route_options.
struct RouteOptions {
  int top_k;
  bool sigmoid, norm;
  float least_sum, scale; // scale 1: none
  int groups, top_groups; // groups 0: none
  bool two_best;

  bool operator==(const RouteOptions&) const = default;
};

// Scores [N, E] to the chosen experts, U32 [N, top_k], and their weights, F32. `correction` is added for the choice.
std::optional<Arrays> route(
    const mx::array& scores, const std::optional<mx::array>& correction, const RouteOptions& options, mx::Stream s);
Arrays route_plainly(
    const mx::array& scores, const std::optional<mx::array>& correction, const RouteOptions& options, mx::Stream s);

// The sum over k of y[n, k] weights[n, k]: [N, K, E] and F32 [N, K] to [N, E].
std::optional<mx::array> weighted_sum(const mx::array& y, const mx::array& weights, mx::Stream s);
mx::array weighted_sum_plainly(const mx::array& y, const mx::array& weights, mx::Stream s);

} // namespace mlxrs::ops
