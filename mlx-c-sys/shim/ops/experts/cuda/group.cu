// Divides rows into tasks by their experts, for products of more rows than blocks group themselves.
//
// Layout: `order` has the rows of expert 0, then those of expert 1, and so on. `tasks` names at most `rows` adjacent places of it each, all of
// one expert, and ends with tasks without rows.
// Grid: one block. The order of an expert's rows is that in which threads come; results do not depend on it.
// Bound: by the latency of shared memory's counters, a few microseconds for thousands of rows.
#include "cuda/device.cuh"
#include "ops/experts/cuda/args.h"

namespace mlxrs::cuda {

constexpr int group_threads = 1024, group_warps = group_threads / warp_size;

// Rows in the low half, tasks in the high half: both of all threads before this one, and of all threads.
struct Before {
  uint64_t own, all;
};
__device__ inline Before before(uint64_t own) {
  __shared__ uint64_t warps[group_warps];
  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  uint64_t sum = own;
#pragma unroll
  for (int step = 1; step < warp_size; step *= 2) {
    uint64_t other = __shfl_up_sync(~0u, static_cast<unsigned long long>(sum), step);
    sum += lane >= step ? other : 0;
  }
  __syncthreads();
  if (lane == warp_size - 1) {
    warps[warp] = sum;
  }
  __syncthreads();
  Before found{sum - own, 0};
  for (int i = 0; i < group_warps; i++) {
    found.own += i < warp ? warps[i] : 0;
    found.all += warps[i];
  }
  return found;
}

__device__ inline void group_rows(const GroupArgs& a) {
  wait_for_previous();
  // How many rows each expert has; then where its next row goes.
  __shared__ int places[most_experts];
  auto expert_of = [&](int i) { return min(a.indices[i], static_cast<uint32_t>(a.experts - 1)); };
  for (int e = threadIdx.x; e < a.experts; e += group_threads) {
    places[e] = 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < a.m; i += group_threads) {
    atomicAdd(places + expert_of(i), 1);
  }
  __syncthreads();
  uint64_t so_far = 0;
  for (int first = 0; first < a.experts; first += group_threads) {
    int e = first + threadIdx.x, count = e < a.experts ? places[e] : 0, tasks = (count + a.rows - 1) / a.rows;
    auto [own, all] = before(static_cast<uint64_t>(tasks) << 32 | static_cast<uint32_t>(count));
    own += so_far, so_far += all;
    int row = static_cast<int>(own), task = static_cast<int>(own >> 32);
    for (int i = 0; i < tasks; i++) {
      a.tasks[task + i] = {e, row + i * a.rows, min(a.rows, count - i * a.rows)};
    }
    if (e < a.experts) {
      places[e] = row;
    }
  }
  for (int i = static_cast<int>(so_far >> 32) + threadIdx.x; i < a.most; i += group_threads) {
    a.tasks[i] = {0, 0, 0};
  }
  __syncthreads();
  for (int i = threadIdx.x; i < a.m; i += group_threads) {
    a.order[atomicAdd(places + expert_of(i), 1)] = i;
  }
}

} // namespace mlxrs::cuda

extern "C" __global__ void __launch_bounds__(mlxrs::cuda::group_threads)
    group_rows(const __grid_constant__ mlxrs::cuda::GroupArgs a) {
  mlxrs::cuda::group_rows(a);
}
