// What attention.cu and stored.cuh share: how the parts of the keys are weighed and joined, and values as tensor cores take them.
#pragma once

#include "cuda/device.cuh"

namespace mlxrs::cuda {

constexpr float nothing = -INFINITY;

// e^(x - most), 0 for no score at all.
__device__ inline float weight_of(float x, float most) {
  return x == nothing ? 0.0f : __expf(x - most);
}
// The only place where two parts become one: compilers choose how to round sums of products that are written otherwise.
__device__ inline float joined(float x, float of_x, float y, float of_y) {
  return __fmaf_rn(x, of_x, __fmul_rn(y, of_y));
}

// The elements of four 8 x 8 matrices, whose rows begin at the addresses of eight threads each: of matrix i thread 4 g + t gets the elements
// (2 t, g) and (2 t + 1, g).
template <class T>
__device__ inline void load_transposed(uint32_t (&b)[4], const T* at) {
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address));
}

} // namespace mlxrs::cuda
