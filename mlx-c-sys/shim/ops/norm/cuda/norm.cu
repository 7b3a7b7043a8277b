// RMS norms with and without a residual, for rows of n elements of bf16 or f16, computed in F32:
// sum = x + residual, or rounded(rms_norm(x, inner)) + residual; normed = rms_norm(sum, outer).
//
// Grid: one block of 256 threads for each row. Rows with an even n of at most 16,384 stay in registers, two elements a
// load; other rows are read again from memory for each pass. For prompts, `add_norm_by_warp` has a warp for each row of at
// most 2,048 elements, eight elements a load. Its sums have the same order, so the bits are the same. Bound: by the latency
// of memory for single tokens, by memory bandwidth for prompts.
#include "ops/norm/cuda/row.cuh"

namespace mlxrs::cuda {

// 1 / sqrt(mean(x^2) + eps) of a row in memory.
template <class T>
__device__ float factor(const T* x, int n, float eps, float (&parts)[norm_warps]) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += norm_threads) {
    float v = wide(x[i]);
    sum += v * v;
  }
  return rsqrtf(block_sum(sum, parts) / static_cast<float>(n) + eps);
}

template <class T, int Pairs>
__device__ void add_norm_in_registers(const NormArgs& a) {
  if (!a.early) {
    wait_for_previous();
  }
  int64_t first = static_cast<int64_t>(blockIdx.x) * a.n;
  NormRow<T, Pairs> row;
  // All loads are issued before the first value is used, so that the latency of memory is paid once.
  row.load_weights(a);
  if (a.early) {
    wait_for_previous();
  }
  row.load_row(a, first);
  auto to = [&](void* y) {
    return [=](int at, uint32_t word) { *reinterpret_cast<uint32_t*>(static_cast<T*>(y) + first + at) = word; };
  };
  row.add(a, to(a.sum));
  if (a.normed != nullptr) {
    row.norm(a, to(a.normed));
  }
}

template <class T>
__device__ void add_norm_in_memory(const NormArgs& a) {
  wait_for_previous();
  __shared__ __align__(16) float parts[2][norm_warps];
  int64_t at = static_cast<int64_t>(blockIdx.x) * a.n;
  const T* x = static_cast<const T*>(a.x) + at;
  if (a.residual != nullptr) {
    const T* residual = static_cast<const T*>(a.residual) + at;
    const T* inner = static_cast<const T*>(a.inner);
    T* sum = static_cast<T*>(a.sum) + at;
    float r = inner != nullptr ? factor(x, a.n, a.eps, parts[0]) : 1.0f;
    for (int i = threadIdx.x; i < a.n; i += norm_threads) {
      float v = wide(x[i]);
      v = inner != nullptr ? rounded<T>(v * r * wide(inner[i])) : v;
      sum[i] = narrow<T>(v + wide(residual[i]));
    }
    // Each thread reads only elements that it has written itself.
    x = sum;
  }
  if (a.normed != nullptr) {
    const T* outer = static_cast<const T*>(a.outer);
    T* y = static_cast<T*>(a.normed) + at;
    float r = factor(x, a.n, a.eps, parts[1]);
    for (int i = threadIdx.x; i < a.n; i += norm_threads) {
      y[i] = narrow<T>(wide(x[i]) * r * (outer != nullptr ? wide(outer[i]) : 1.0f));
    }
  }
}

// 1 / sqrt(mean(x^2) + eps) of a row of which a lane has the elements 8 (lane + 32 i) to 8 (lane + 32 i) + 7 in v[i]. The
// order of the sum is that of `NormRow::factor`: its thread t has the pairs 2 (t + 256 i), so lane l has the pairs of its
// threads 4 l to 4 l + 3 and, in every other v, 128 + 4 l to 128 + 4 l + 3.
template <int N>
__device__ inline float warp_factor(const float (&v)[N][8], int n, float eps) {
  int lane = threadIdx.x % warp_size;
  float threads[2][4] = {};
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (8 * (lane + warp_size * i) < n) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        threads[i % 2][j] = plus_squares(threads[i % 2][j], v[i][2 * j], v[i][2 * j + 1]);
      }
    }
  }
  // The sums of warps of `block_sum`: lane 8 w + .. has that of warp w in warps[0], and that of warp 4 + w in warps[1].
  float warps[2], sum = 0;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    auto& x = threads[half];
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        x[j] += __shfl_xor_sync(~0u, x[j], step);
      }
    }
    warps[half] = (x[0] + x[2]) + (x[1] + x[3]);
  }
#pragma unroll
  for (int w = 0; w < 8; w++) {
    sum += __shfl_sync(~0u, warps[w / 4], w % 4 * 8);
  }
  return rsqrtf(sum / static_cast<float>(n) + eps);
}

// For rows of at most 256 N elements, a multiple of 8, in arrays that begin at multiples of 16 bytes.
template <class T, int N>
__device__ void add_norm_by_warp(const NormArgs& a) {
  wait_for_previous();
  int lane = threadIdx.x % warp_size, row = blockIdx.x * (norm_threads / warp_size) + threadIdx.x / warp_size;
  if (row >= a.rows) {
    return;
  }
  int64_t first = static_cast<int64_t>(row) * (a.n / 8);
  auto each = [&](auto f) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (8 * (lane + warp_size * i) < a.n) {
        f(i, lane + warp_size * i);
      }
    }
  };
  auto element = [](const uint4& words, int e) { return wide(reinterpret_cast<const T*>(&words)[e]); };
  uint4 added[N];
  float v[N][8] = {};
  each([&](int i, int at) {
    uint4 given = static_cast<const uint4*>(a.x)[first + at];
    if (a.residual != nullptr) {
      added[i] = static_cast<const uint4*>(a.residual)[first + at];
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
      v[i][e] = element(given, e);
    }
  });
  if (a.residual != nullptr) {
    float r = a.inner != nullptr ? warp_factor(v, a.n, a.eps) : 1.0f;
    each([&](int i, int at) {
      if (a.inner != nullptr) {
        uint4 weights = static_cast<const uint4*>(a.inner)[at];
#pragma unroll
        for (int e = 0; e < 8; e++) {
          v[i][e] = rounded<T>(v[i][e] * r * element(weights, e));
        }
      }
      uint32_t sum[4];
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        sum[e / 2] = pair<T>(v[i][e] + element(added[i], e), v[i][e + 1] + element(added[i], e + 1));
      }
      uint4 words = make_uint4(sum[0], sum[1], sum[2], sum[3]);
      static_cast<uint4*>(a.sum)[first + at] = words;
#pragma unroll
      for (int e = 0; e < 8; e++) {
        v[i][e] = element(words, e);
      }
    });
  }
  if (a.normed != nullptr) {
    float r = warp_factor(v, a.n, a.eps);
    each([&](int i, int at) {
      uint4 weights = a.outer != nullptr ? static_cast<const uint4*>(a.outer)[at] : uint4{};
      auto weight = [&](int e) { return a.outer != nullptr ? element(weights, e) : 1.0f; };
      uint32_t y[4];
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        y[e / 2] = pair<T>(v[i][e] * r * weight(e), v[i][e + 1] * r * weight(e + 1));
      }
      static_cast<uint4*>(a.normed)[first + at] = make_uint4(y[0], y[1], y[2], y[3]);
    });
  }
}

} // namespace mlxrs::cuda

// The number in the name of a kernel is N, or the pairs of elements of a thread.
#define MLXRS_NORM_BY_WARP(T, N)                                                                          \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::norm_threads)                                \
      add_norm_by_warp_##T##_##N(const __grid_constant__ mlxrs::cuda::NormArgs a) {                       \
    mlxrs::cuda::add_norm_by_warp<mlxrs::cuda::T, N>(a);                                                  \
  }
#define MLXRS_NORM_IN_REGISTERS(T, PAIRS)                                                                 \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::norm_threads)                                \
      add_norm_##T##_##PAIRS(const __grid_constant__ mlxrs::cuda::NormArgs a) {                           \
    mlxrs::cuda::add_norm_in_registers<mlxrs::cuda::T, PAIRS>(a);                                         \
  }
#define MLXRS_NORM(T)                                                                                     \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::norm_threads)                                \
      add_norm_in_memory_##T(const __grid_constant__ mlxrs::cuda::NormArgs a) {                           \
    mlxrs::cuda::add_norm_in_memory<mlxrs::cuda::T>(a);                                                   \
  }                                                                                                       \
  MLXRS_NORM_IN_REGISTERS(T, 8)                                                                           \
  MLXRS_NORM_IN_REGISTERS(T, 16)                                                                          \
  MLXRS_NORM_IN_REGISTERS(T, 32)                                                                          \
  MLXRS_NORM_BY_WARP(T, 4)                                                                                \
  MLXRS_NORM_BY_WARP(T, 5)                                                                                \
  MLXRS_NORM_BY_WARP(T, 8)
MLXRS_NORM(bf16)
MLXRS_NORM(f16)
