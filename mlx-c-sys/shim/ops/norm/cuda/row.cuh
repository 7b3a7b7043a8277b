// The sum and the RMS norm of one row, which a block of 256 threads has in registers. For the kernel of norms (norm.cu), and
// for products that compute the norm of their x themselves.
#pragma once

#include "cuda/args.h"
#include "cuda/device.cuh"

namespace mlxrs::cuda {

constexpr int norm_warps = norm_threads / warp_size;

// sum + x^2 + y^2, always rounded in the same way.
__device__ inline float plus_squares(float sum, float x, float y) {
  return __fadd_rn(sum, __fmaf_rn(x, x, __fmul_rn(y, y)));
}

// For rows with an even number of at most `most` elements. Thread t has the pairs of elements that begin at
// 2 (t + 256 i). The order of sums does not depend on `Pairs`.
template <class T, int Pairs>
class NormRow {
 public:
  static constexpr int most = 2 * Pairs * norm_threads;

  __device__ void load_weights(const NormArgs& a) {
    load(inner_, a.inner, a.n);
    load(outer_, a.outer, a.n);
  }
  // Loads the row whose first element is number `first`.
  __device__ void load_row(const NormArgs& a, int64_t first) {
    load(given_, static_cast<const T*>(a.x) + first, a.n);
    if (a.residual != nullptr) {
      load(added_, static_cast<const T*>(a.residual) + first, a.n);
    }
  }
  // Calls sum(at, word) for each pair of elements of the sum, if there is a residual.
  template <class Write>
  __device__ void add(const NormArgs& a, const Write& sum) {
#pragma unroll
    for (int i = 0; i < Pairs; i++) {
      v_[i] = two(given_[i]);
    }
    if (a.residual == nullptr) {
      return;
    }
    __shared__ __align__(16) float parts[norm_warps];
    float r = a.inner != nullptr ? factor(a, parts) : 1.0f;
    each(a.n, [&](int i, int at) {
      float2& v = v_[i];
      if (a.inner != nullptr) {
        float2 w = two(inner_[i]);
        v = {rounded<T>(v.x * r * w.x), rounded<T>(v.y * r * w.y)};
      }
      float2 added = two(added_[i]);
      uint32_t both = pair<T>(v.x + added.x, v.y + added.y);
      sum(at, both);
      v = two(both);
    });
  }
  // Calls normed(at, word) for each pair of elements of the norm. Call it after `add`.
  template <class Write>
  __device__ void norm(const NormArgs& a, const Write& normed) {
    __shared__ __align__(16) float parts[norm_warps];
    float r = factor(a, parts);
    each(a.n, [&](int i, int at) {
      float2 v = v_[i], w = a.outer != nullptr ? two(outer_[i]) : make_float2(1.0f, 1.0f);
      normed(at, pair<T>(v.x * r * w.x, v.y * r * w.y));
    });
  }

 private:
  __device__ static float2 two(uint32_t word) {
    const T* v = reinterpret_cast<const T*>(&word);
    return {wide(v[0]), wide(v[1])};
  }
  template <class F>
  __device__ static void each(int n, const F& f) {
#pragma unroll
    for (int i = 0; i < Pairs; i++) {
      int at = 2 * (threadIdx.x + i * norm_threads);
      if (at < n) {
        f(i, at);
      }
    }
  }
  __device__ static void load(uint32_t (&to)[Pairs], const void* from, int n) {
    if (from == nullptr) {
      return;
    }
#pragma unroll
    for (int i = 0; i < Pairs; i++) {
      int at = 2 * (threadIdx.x + i * norm_threads);
      to[i] = at < n ? *reinterpret_cast<const uint32_t*>(static_cast<const T*>(from) + at) : 0;
    }
  }
  // 1 / sqrt(mean(v^2) + eps).
  __device__ float factor(const NormArgs& a, float (&parts)[norm_warps]) const {
    float sum = 0;
    each(a.n, [&](int i, int) { sum = plus_squares(sum, v_[i].x, v_[i].y); });
    return rsqrtf(block_sum(sum, parts) / static_cast<float>(a.n) + a.eps);
  }

  uint32_t given_[Pairs], added_[Pairs], inner_[Pairs], outer_[Pairs];
  float2 v_[Pairs];
};

} // namespace mlxrs::cuda
