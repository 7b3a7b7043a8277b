// Sorts rows by expert and divides them into tasks, for products with more than `few_indices` rows.
//
// Output: `order` [m] has the row numbers of expert 0, then those of expert 1, and so on. `tasks` [most] has the tasks,
// each of at most `rows` adjacent places of `order`, all of one expert. Empty tasks fill the rest of the table.
// Grid: one block of 1,024 threads, which counts the rows of each expert in shared memory, computes prefix sums of rows
// and tasks, and scatters the row numbers. The order of an expert's rows depends on the timing of atomics; results do
// not depend on it.
// Bound: the latency of atomics in shared memory, a few microseconds for thousands of rows.
#include "cuda/device.cuh"
#include "cuda/report.cuh"
#include "ops/experts/cuda/args.h"

namespace mlxrs::cuda {

constexpr int group_threads = 1024, group_warps = group_threads / warp_size;

// Exclusive prefix sum (`own`) and total (`all`) of a counter over the threads of the block. The low 32 bits count
// rows, the high 32 bits count tasks.
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
  // First the number of rows of each expert, later the place in `order` of its next row.
  __shared__ int places[most_experts];
  for (int e = threadIdx.x; e < a.experts; e += group_threads) {
    places[e] = 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < a.m; i += group_threads) {
    check_expert(a.report, a.indices[i], a.experts);
    atomicAdd(places + expert_of(a.indices[i], a.experts), 1);
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
    a.order[atomicAdd(places + expert_of(a.indices[i], a.experts), 1)] = i;
  }
}

} // namespace mlxrs::cuda

extern "C" __global__ void __launch_bounds__(mlxrs::cuda::group_threads)
    group_rows(const __grid_constant__ mlxrs::cuda::GroupArgs a) {
  mlxrs::cuda::group_rows(a);
}
