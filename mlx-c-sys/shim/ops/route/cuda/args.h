// Arguments of the CUDA kernels of routers, shared by host and device.
#pragma once

#include <stdint.h>

namespace mlxrs::cuda {

struct RouteArgs {
  const void* scores;      // [tokens, experts]
  const float* correction; // [experts], or null
  uint32_t* chosen;        // [tokens, top_k]
  float* weights;          // [tokens, top_k]
  int tokens, experts, top_k;
  int groups, top_groups; // groups 0: experts have no groups
  bool sigmoid, norm, two_best;
  float added, least_sum, scale;
};

struct WeightedArgs {
  const void* y;        // [tokens, count, n]
  const float* weights; // [tokens, count]
  void* sum;            // [tokens, n]
  int count, n;
  int64_t all; // tokens * n
};

constexpr int most_routed = 1024, most_groups = 32, most_chosen = 32;

} // namespace mlxrs::cuda
