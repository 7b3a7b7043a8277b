// `route` chooses the experts of each token: probabilities are the softmax or sigmoid of the scores, and the top_k
// experts with the largest probability plus correction are chosen, within the best groups if there are groups.
// `weighted_sum` adds the experts' outputs, multiplied by their weights.
//
// Threads of `route`: one warp for each token, four tokens a block. Probabilities are in shared memory; a thread
// handles every 32nd expert. Experts come out in descending order, equal ones by ascending number. A token's result
// does not depend on other tokens.
// Threads of `weighted_sum`: one thread for each element, in a grid-stride loop.
// Bound: `route` by latency, some microseconds; `weighted_sum` by memory bandwidth.
#include "cuda/device.cuh"
#include "ops/route/cuda/args.h"

namespace mlxrs::cuda {

constexpr int route_warps = 4;

// The score of a group of experts: its best, or the sum of its two best.
__device__ inline float score_of(const float* choice, int size, bool two_best) {
  float best = -INFINITY, second = -INFINITY;
  for (int i = 0; i < size; i++) {
    second = fmaxf(second, fminf(best, choice[i]));
    best = fmaxf(best, choice[i]);
  }
  return two_best ? best + second : best;
}

template <class T>
__device__ void route(const RouteArgs& a) {
  wait_for_previous();
  __shared__ float all_probs[route_warps][most_routed], all_choices[route_warps][most_routed];
  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, token = blockIdx.x * route_warps + warp;
  if (token >= a.tokens) {
    return;
  }
  float *probs = all_probs[warp], *choice = all_choices[warp];
  const T* scores = static_cast<const T*>(a.scores) + static_cast<int64_t>(token) * a.experts;
  float most = -INFINITY, total = 0;
  for (int e = lane; e < a.experts; e += warp_size) {
    most = fmaxf(most, wide(scores[e]));
  }
  most = warp_max(most);
  for (int e = lane; e < a.experts; e += warp_size) {
    float x = wide(scores[e]);
    probs[e] = a.sigmoid ? 1.0f / (1.0f + expf(-x)) : expf(x - most);
    total += probs[e];
  }
  float factor = a.sigmoid ? 1.0f : 1.0f / warp_sum(total);
  for (int e = lane; e < a.experts; e += warp_size) {
    probs[e] *= factor;
    choice[e] = probs[e] + (a.correction != nullptr ? a.correction[e] : 0.0f);
  }
  __syncwarp();
  if (a.groups > a.top_groups) {
    int size = a.experts / a.groups;
    float own = lane < a.groups ? score_of(choice + lane * size, size, a.two_best) : 0.0f;
    int better = 0;
    for (int g = 0; g < a.groups; g++) {
      float other = __shfl_sync(~0u, own, g);
      better += other > own || (other == own && g < lane);
    }
    uint32_t kept = __ballot_sync(~0u, lane < a.groups && better < a.top_groups);
    for (int e = lane; e < a.experts; e += warp_size) {
      choice[e] = (kept >> (e / size) & 1) != 0 ? choice[e] : -INFINITY;
    }
  }
  // Each round takes the best remaining expert of the warp. Bit i of `taken` is set once the thread's i-th expert is
  // chosen. NaN is chosen last.
  uint32_t taken = 0, own_expert = 0;
  float own_weight = 0, sum = 0;
  for (int k = 0; k < a.top_k; k++) {
    float best = -INFINITY;
    int found = a.experts;
    for (int e = lane, i = 0; e < a.experts; e += warp_size, i++) {
      if ((taken >> i & 1) == 0) {
        float x = choice[e] == choice[e] ? choice[e] : -INFINITY;
        if (found == a.experts || x > best) {
          best = x, found = e;
        }
      }
    }
#pragma unroll
    for (int step = warp_size / 2; step > 0; step /= 2) {
      float x = __shfl_xor_sync(~0u, best, step);
      int e = __shfl_xor_sync(~0u, found, step);
      bool is_better = e < a.experts && (found == a.experts || x > best || (x == best && e < found));
      best = is_better ? x : best, found = is_better ? e : found;
    }
    if (found % warp_size == lane) {
      taken |= 1u << (found / warp_size);
    }
    sum += probs[found];
    if (k == lane) {
      own_expert = found, own_weight = probs[found];
    }
  }
  if (a.norm) {
    own_weight /= fmaxf(sum + a.added, a.least_sum);
  }
  if (lane < a.top_k) {
    a.chosen[token * a.top_k + lane] = own_expert;
    a.weights[token * a.top_k + lane] = own_weight * a.scale;
  }
}

// Sums in F32, in the order of a token's experts. Weights are rounded to T, as in the plain form.
template <class T>
__device__ void weighted_sum(const WeightedArgs& a) {
  wait_for_previous();
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.all; i += step) {
    int64_t token = i / a.n, first = token * a.count;
    const T* y = static_cast<const T*>(a.y) + first * a.n + i % a.n;
    float sum = 0;
    for (int k = 0; k < a.count; k++) {
      sum = fmaf(rounded<T>(a.weights[first + k]), wide(y[static_cast<int64_t>(k) * a.n]), sum);
    }
    static_cast<T*>(a.sum)[i] = narrow<T>(sum);
  }
}

} // namespace mlxrs::cuda

#define MLXRS_ROUTE(NAME, T)                                                                       \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::route_warps * mlxrs::cuda::warp_size)  \
      route_##NAME(const __grid_constant__ mlxrs::cuda::RouteArgs a) {                             \
    mlxrs::cuda::route<T>(a);                                                                      \
  }
MLXRS_ROUTE(f32, float)
MLXRS_ROUTE(bf16, mlxrs::cuda::bf16)
MLXRS_ROUTE(f16, mlxrs::cuda::f16)

extern "C" __global__ void weighted_bf16(const __grid_constant__ mlxrs::cuda::WeightedArgs a) {
  mlxrs::cuda::weighted_sum<mlxrs::cuda::bf16>(a);
}
extern "C" __global__ void weighted_f16(const __grid_constant__ mlxrs::cuda::WeightedArgs a) {
  mlxrs::cuda::weighted_sum<mlxrs::cuda::f16>(a);
}
