// The C functions of routers.
#include <algorithm>

#include "ops/border.h"
#include "route.h"

using namespace mlxrs;

extern "C" int mlxrs_fast_route(
    mlx_array* experts, mlx_array* weights, mlx_array scores, mlx_array correction, mlxrs_route_options options, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto& in = mlx_array_get_(scores);
    const auto& o = options;
    bool has_groups = o.groups > 0;
    if (in.ndim() != 2 || o.top_k < 1 || o.top_k > in.shape(1) || o.groups < 0 ||
        (has_groups && (in.shape(1) % o.groups != 0 || o.top_groups < 1 || o.top_groups > o.groups ||
                        (o.two_best && in.shape(1) / o.groups < 2)))) {
      throw std::invalid_argument("route: scores [N, experts] have fewer experts, or groups do not divide them");
    }
    // If all sigmoids are 0, the division is finite.
    float to_sum = o.sigmoid ? std::max(o.added, 1e-20f) : o.added;
    ops::RouteOptions how{o.top_k, o.sigmoid, o.norm, to_sum, o.least_sum, o.scale, o.groups, o.top_groups, o.two_best};
    auto added = ops::optional(correction);
    auto out = ops::run(
        MLXRS_OP_EXPERTS, stream, [&] { return ops::route(in, added, how, stream); },
        [&] { return ops::route_plainly(in, added, how, stream); });
    mlx_array_set_(*experts, out.at(0));
    mlx_array_set_(*weights, out.at(1));
  });
}

extern "C" int mlxrs_fast_weighted_sum(mlx_array* res, mlx_array y, mlx_array weights, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &in = mlx_array_get_(y), &factors = mlx_array_get_(weights);
    auto sum = ops::run(
        MLXRS_OP_EXPERTS, stream, [&] { return ops::weighted_sum(in, factors, stream); },
        [&] { return ops::weighted_sum_plainly(in, factors, stream); });
    mlx_array_set_(*res, sum);
  });
}
