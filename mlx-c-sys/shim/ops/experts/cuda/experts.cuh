// Products of a mixture of experts: y[i] = x[i / share] w[indices[i]]^T for x [m / share, k] and w [experts, n, k].
// With two stacks a and b the result is gate(x a^T) * (x b^T). The sums are float32; y has the type of x (bf16 or f16).
//
// Tasks: a task is one expert and at most 8 (or 32) rows of it, gathered from anywhere in x. A block of 256 threads
// computes 16 columns of y for one task, from 16 rows of the expert's matrix (of both stacks with a gate).
// Grid: blockIdx.x is the tile of 16 columns of y, blockIdx.y the task. The grid has a block for each task that can
// exist; a block without a task returns at once. Only the device knows which rows belong to which expert. With at most
// 64 rows, block y finds all rows that have the expert of row y. If the number of such rows before row y is a multiple
// of the task size, the block computes the next ones; else another block does. With more rows the kernel `group_rows`
// has written a table of tasks.
// Order of sums: warps divide the k elements and then add their sums, as in `product` (ops/linear/cuda/product.cuh). So
// a row's result equals the result of `linear` with the same matrix to the bit, and does not depend on the other rows.
// Bound: with few rows, memory bandwidth for the matrices of all selected experts. In prompts, unpacking of codes,
// which each task repeats.
#pragma once

#include "cuda/report.cuh"
#include "ops/experts/cuda/args.h"
#include "ops/linear/cuda/product.cuh"

namespace mlxrs::cuda {

// Returns the expert of this block's task, and writes the task's rows to `rows` in shared memory, -1 after the last.
// Returns -1 if the block has no task.
template <int Most>
__device__ inline int find_task(const ExpertsArgs& a, int (&rows)[Most]) {
  int own = blockIdx.y;
  if (a.tasks != nullptr) {
    auto [expert, first, count] = a.tasks[own];
    if (count == 0) {
      return -1;
    }
    if (threadIdx.x < Most) {
      rows[threadIdx.x] = static_cast<int>(threadIdx.x) < count ? a.order[first + threadIdx.x] : -1;
    }
    __syncthreads();
    return expert;
  }
  // All warps compute the same bit mask of rows; the first warp writes the result.
  int lane = threadIdx.x % warp_size, expert = expert_of(a.indices[own], a.experts);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    check_expert(a.report, a.indices[own], a.experts);
  }
  uint64_t same = 0;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int i = half * warp_size + lane;
    bool is_same = i < a.m && expert_of(a.indices[i], a.experts) == expert;
    same |= static_cast<uint64_t>(__ballot_sync(~0u, is_same)) << (half * warp_size);
  }
  auto before = [&](int i) { return __popcll(same & ((1ull << i) - 1)); };
  int first = before(own), count = __popcll(same) - first;
  if (first % Most != 0) {
    return -1;
  }
  if (threadIdx.x < warp_size) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int i = half * warp_size + lane, place = before(i) - first;
      if ((same >> i & 1) != 0 && place >= 0 && place < Most) {
        rows[place] = i;
      }
    }
    if (lane < Most && lane >= count) {
      rows[lane] = -1;
    }
  }
  __syncthreads();
  return expert;
}

template <class T, class Codes, int Eights, int Stacks>
__device__ void experts(const ExpertsArgs& a) {
  constexpr int columns = 8 * Eights, padded = tile_rows + 1;
  __shared__ float sums[product_warps][columns * padded];
  __shared__ int rows[columns];
  wait_for_previous();
  int expert = find_task(a, rows);
  if (expert < 0) {
    return;
  }

  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, g = lane / 4, t = lane % 4;
  int start = blockIdx.x * tile_rows;
  int64_t matrix = static_cast<int64_t>(expert) * a.n;
  const T* xs[Eights];
#pragma unroll
  for (int j = 0; j < Eights; j++) {
    int row = rows[8 * j + g];
    xs[j] = row < 0 ? nullptr : static_cast<const T*>(a.x) + static_cast<int64_t>(row / a.share) * a.k;
  }
  bool aligned[Stacks];
#pragma unroll
  for (int s = 0; s < Stacks; s++) {
    aligned[s] = reinterpret_cast<uintptr_t>(a.of[s].weight) % 16 == 0;
  }
  // Loads the codes of rows g and g + 8 of the tile, or zeros outside of the matrix.
  auto load = [&](int block, Codes (&codes)[Stacks][2]) {
    int at = block * columns_of_warp + t * columns_of_thread;
#pragma unroll
    for (int s = 0; s < Stacks; s++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int row = start + 8 * h + g;
        if (at < a.k && row < a.n) {
          codes[s][h].load(a.of[s].weight, a.of[s].scales, a.of[s].biases, static_cast<uint32_t>((matrix + row) * (a.k / 32) + at / 32), a.group_bits, aligned[s]);
        } else {
          codes[s][h].clear();
        }
      }
    }
  };

  float c[Stacks][Eights][4] = {};
  constexpr int ahead = Eights == 1 && Stacks == 1 ? 2 : 1;
  int blocks = (a.k + columns_of_warp - 1) / columns_of_warp;
  Codes loaded[ahead + 1][Stacks][2];
#pragma unroll
  for (int d = 0; d < ahead; d++) {
    load(warp + d * product_warps, loaded[d]);
  }
  for (int block = warp; block < blocks; block += product_warps) {
    int at = block * columns_of_warp + t * columns_of_thread;
    load(block + ahead * product_warps, loaded[ahead]);
#pragma unroll
    for (int i = 0; i < columns_of_thread / 8; i++) {
      uint32_t x[Eights][4];
#pragma unroll
      for (int j = 0; j < Eights; j++) {
        uint4 v = {};
        if (at < a.k && xs[j] != nullptr) {
          v = *reinterpret_cast<const uint4*>(xs[j] + at + 8 * i);
        }
        arrange<Codes::pairs>(v, x[j]);
      }
#pragma unroll
      for (int s = 0; s < Stacks; s++) {
        uint32_t upper[4], lower[4];
        loaded[0][s][0].eight(i, upper);
        loaded[0][s][1].eight(i, lower);
#pragma unroll
        for (int j = 0; j < Eights; j++) {
          multiply<T>(c[s][j], {upper[0], lower[0], upper[1], lower[1]}, x[j][0], x[j][1]);
          multiply<T>(c[s][j], {upper[2], lower[2], upper[3], lower[3]}, x[j][2], x[j][3]);
        }
      }
    }
#pragma unroll
    for (int d = 0; d < ahead; d++) {
#pragma unroll
      for (int s = 0; s < Stacks; s++) {
        loaded[d][s][0] = loaded[d + 1][s][0];
        loaded[d][s][1] = loaded[d + 1][s][1];
      }
    }
  }

  constexpr int elements = (columns * tile_rows + product_threads - 1) / product_threads;
  float gates[elements];
#pragma unroll
  for (int s = 0; s < Stacks; s++) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < Eights; j++) {
      float* to = sums[warp] + (8 * j + 2 * t) * padded + g;
      to[0] = c[s][j][0];
      to[padded] = c[s][j][1];
      to[8] = c[s][j][2];
      to[padded + 8] = c[s][j][3];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < elements; e++) {
      int i = threadIdx.x + e * product_threads, place = i / tile_rows, column = start + i % tile_rows;
      if (place >= columns || rows[place] < 0 || column >= a.n) {
        continue;
      }
      float sum = 0;
#pragma unroll
      for (int w = 0; w < product_warps; w++) {
        sum += sums[w][place * padded + i % tile_rows];
      }
      if (s + 1 < Stacks) {
        gates[e] = rounded<T>(sum);
        continue;
      }
      if (Stacks == 2) {
        sum = rounded<T>(gate_of(a.gate, gates[e])) * rounded<T>(sum);
      }
      static_cast<T*>(a.y)[static_cast<int64_t>(rows[place]) * a.n + column] = narrow<T>(sum);
    }
  }
}

} // namespace mlxrs::cuda

#define MLXRS_EXPERT(NAME, T, EIGHTS, STACKS, ...)                                     \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::product_threads)           \
      experts_##NAME##_##T##_##EIGHTS##_##STACKS(                                      \
          const __grid_constant__ mlxrs::cuda::ExpertsArgs a) {                        \
    using namespace mlxrs::cuda;                                                       \
    experts<T, __VA_ARGS__, EIGHTS, STACKS>(a);                                        \
  }
#define MLXRS_EXPERTS(NAME, T, ...)         \
  MLXRS_EXPERT(NAME, T, 1, 1, __VA_ARGS__)  \
  MLXRS_EXPERT(NAME, T, 1, 2, __VA_ARGS__)  \
  MLXRS_EXPERT(NAME, T, 4, 1, __VA_ARGS__)  \
  MLXRS_EXPERT(NAME, T, 4, 2, __VA_ARGS__)
