#include "cuda/args.h"
#include "cuda/device.cuh"

namespace mlxrs::cuda {

constexpr int norm_threads = 256;

// 1 / sqrt(mean(x^2) + eps) of a row.
template <class T>
__device__ float factor(const T* x, int n, float eps) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += norm_threads) {
    float v = wide(x[i]);
    sum += v * v;
  }
  return rsqrtf(block_sum<norm_threads>(sum) / static_cast<float>(n) + eps);
}

template <class T>
__device__ void add_norm(const NormArgs& a) {
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
    // Each thread reads what it wrote.
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
