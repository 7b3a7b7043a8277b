// RMS norms with and without a residual, for rows of n elements of bf16 or f16, computed in F32:
// sum = x + residual, or rounded(rms_norm(x, inner)) + residual; normed = rms_norm(sum, outer).
//
// Grid: one block of 256 threads for each row. Rows with an even n of at most 4,096 stay in registers, two elements a
// load; other rows are read again from memory for each pass. Bound: by the latency of memory for single tokens, by
// memory bandwidth for prompts.
#include "cuda/args.h"
#include "cuda/device.cuh"

namespace mlxrs::cuda {

constexpr int norm_threads = 256;

// 1 / sqrt(mean(x^2) + eps) of a row in memory.
template <class T>
__device__ float factor(const T* x, int n, float eps) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += norm_threads) {
    float v = wide(x[i]);
    sum += v * v;
  }
  return rsqrtf(block_sum<norm_threads>(sum) / static_cast<float>(n) + eps);
}

// The thread's part of a row in registers: up to `pairs` pairs of elements, for rows with an even n of at most `most`.
struct Row {
  static constexpr int pairs = 8, most = 2 * pairs * norm_threads;
  float2 v[pairs];

  template <class F>
  __device__ void each(int n, const F& f) {
#pragma unroll
    for (int i = 0; i < pairs; i++) {
      int at = 2 * (threadIdx.x + i * norm_threads);
      if (at < n) {
        f(v[i], at, i);
      }
    }
  }
  __device__ float factor(int n, float eps) {
    float sum = 0;
    each(n, [&](float2& v, int, int) { sum += v.x * v.x + v.y * v.y; });
    return rsqrtf(block_sum<norm_threads>(sum) / static_cast<float>(n) + eps);
  }
};

template <class T>
__device__ inline float2 two_of(const T* x) {
  uint32_t word = *reinterpret_cast<const uint32_t*>(x);
  return {wide(reinterpret_cast<const T*>(&word)[0]), wide(reinterpret_cast<const T*>(&word)[1])};
}

// The thread's pairs of a row, as loaded.
struct Words {
  uint32_t v[Row::pairs];

  template <class T>
  __device__ void load(const T* x, int n) {
#pragma unroll
    for (int i = 0; i < Row::pairs; i++) {
      int at = 2 * (threadIdx.x + i * norm_threads);
      v[i] = at < n ? *reinterpret_cast<const uint32_t*>(x + at) : 0;
    }
  }
};

template <class T>
__device__ void add_norm_in_registers(const NormArgs& a) {
  int64_t at = static_cast<int64_t>(blockIdx.x) * a.n;
  const T *x = static_cast<const T*>(a.x) + at, *residual = static_cast<const T*>(a.residual) + at;
  const T *inner = static_cast<const T*>(a.inner), *outer = static_cast<const T*>(a.outer);
  // All loads are issued before the first value is used, so that the latency of memory is paid once.
  Words given, added, inner_weights, outer_weights;
  given.load(x, a.n);
  if (a.residual != nullptr) {
    added.load(residual, a.n);
  }
  if (inner != nullptr) {
    inner_weights.load(inner, a.n);
  }
  if (outer != nullptr) {
    outer_weights.load(outer, a.n);
  }
  auto two = [](uint32_t word) { return two_of(reinterpret_cast<const T*>(&word)); };
  Row row;
#pragma unroll
  for (int i = 0; i < Row::pairs; i++) {
    row.v[i] = two(given.v[i]);
  }
  if (a.residual != nullptr) {
    T* sum = static_cast<T*>(a.sum) + at;
    float r = inner != nullptr ? row.factor(a.n, a.eps) : 1.0f;
    row.each(a.n, [&](float2& v, int at, int i) {
      if (inner != nullptr) {
        float2 w = two(inner_weights.v[i]);
        v = {rounded<T>(v.x * r * w.x), rounded<T>(v.y * r * w.y)};
      }
      float2 add = two(added.v[i]);
      uint32_t both = pair<T>(v.x + add.x, v.y + add.y);
      *reinterpret_cast<uint32_t*>(sum + at) = both;
      v = two(both);
    });
  }
  if (a.normed != nullptr) {
    T* y = static_cast<T*>(a.normed) + at;
    float r = row.factor(a.n, a.eps);
    row.each(a.n, [&](float2& v, int at, int i) {
      float2 w = outer != nullptr ? two(outer_weights.v[i]) : make_float2(1.0f, 1.0f);
      *reinterpret_cast<uint32_t*>(y + at) = pair<T>(v.x * r * w.x, v.y * r * w.y);
    });
  }
}

template <class T>
__device__ void add_norm(const NormArgs& a) {
  wait_for_previous();
  if (a.n % 2 == 0 && a.n <= Row::most) {
    add_norm_in_registers<T>(a);
    return;
  }
  int64_t at = static_cast<int64_t>(blockIdx.x) * a.n;
  const T* x = static_cast<const T*>(a.x) + at;
  if (a.residual != nullptr) {
    const T* residual = static_cast<const T*>(a.residual) + at;
    const T* inner = static_cast<const T*>(a.inner);
    T* sum = static_cast<T*>(a.sum) + at;
    float r = inner != nullptr ? factor(x, a.n, a.eps) : 1.0f;
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
    float r = factor(x, a.n, a.eps);
    for (int i = threadIdx.x; i < a.n; i += norm_threads) {
      y[i] = narrow<T>(wide(x[i]) * r * (outer != nullptr ? wide(outer[i]) : 1.0f));
    }
  }
}

} // namespace mlxrs::cuda

#define MLXRS_NORM(T)                                                                                     \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::norm_threads)                                \
      add_norm_##T(const __grid_constant__ mlxrs::cuda::NormArgs a) {                                     \
    mlxrs::cuda::add_norm<mlxrs::cuda::T>(a);                                                             \
  }
MLXRS_NORM(bf16)
MLXRS_NORM(f16)
