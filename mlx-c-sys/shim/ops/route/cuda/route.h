#pragma once

#include "ops/route/route.h"

namespace mlxrs::ops {

bool route_fits_cuda(
    const mx::array& scores, const std::optional<mx::array>& correction, const RouteOptions& options, mx::Stream s);
// `in` is {scores} or {scores, correction}, `out` is {experts, weights}.
void route_on_cuda(const Arrays& in, Arrays& out, const RouteOptions& options, mx::Stream s);
// `in` is {outputs of the experts, weights}.
void weighted_sum_on_cuda(const Arrays& in, mx::array& sum, mx::Stream s);

} // namespace mlxrs::ops
