// Device code that attention.cu, prompt.cu and stored.cuh share: sizes of tiles and parts, weights of scores, merging of
// parts, and loads of values for tensor cores.
#pragma once

#include "cuda/device.cuh"

namespace mlxrs::cuda {

constexpr int tile_queries = 16, part_slots = 64;
constexpr float nothing = -INFINITY;

// e^(x - most), or 0 if x is `nothing`.
__device__ inline float weight_of(float x, float most) {
  return x == nothing ? 0.0f : __expf(x - most);
}
// x * of_x + y * of_y. All merges of two parts use this function, because the compiler may round such a sum in
// different ways in different places.
__device__ inline float joined(float x, float of_x, float y, float of_y) {
  return __fmaf_rn(x, of_x, __fmul_rn(y, of_y));
}

// The factor that turns a query's merged values into its result. An attention sink is a score without a value.
__device__ inline float factor_of(const float* sinks, int head, float most, float sum) {
  if (sinks != nullptr) {
    float sink = sinks[head], larger = fmaxf(sink, most), old = weight_of(most, larger);
    sum = joined(sum, old, weight_of(sink, larger), 1.0f);
    return sum > 0 ? old / sum : 0.0f;
  }
  return sum > 0 ? 1.0f / sum : 0.0f;
}

// Loads four 8 x 8 matrices, transposed. Each group of eight threads passes the row addresses of one matrix. Of matrix
// i, thread 4 g + t gets the elements (2 t, g) and (2 t + 1, g) in b[i].
template <class T>
__device__ inline void load_transposed(uint32_t (&b)[4], const T* at) {
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address));
}

} // namespace mlxrs::cuda
