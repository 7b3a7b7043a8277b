#include "cuda/args.h"
#include "cuda/codes.cuh"

namespace mlxrs::cuda {

// A block writes a row, a thread 32 adjacent elements.
template <class T, class Codes>
__device__ void lookup(const LookupArgs& a) {
  uint32_t given = a.indices[blockIdx.x];
  int64_t row = a.is_signed ? static_cast<int64_t>(static_cast<int32_t>(given)) : static_cast<int64_t>(given);
  row = row < 0 ? row + a.n : row;
  // GPUs report no error from within a kernel: an index outside of the matrix is brought into it.
  row = row < 0 ? 0 : row >= a.n ? a.n - 1 : row;
  bool aligned = reinterpret_cast<uintptr_t>(a.weight) % 16 == 0;
  for (int at = 32 * threadIdx.x; at < a.k; at += 32 * blockDim.x) {
    Codes codes;
    codes.load(a.weight, a.scales, a.biases, row, a.k, at, a.group, aligned);
    T* y = static_cast<T*>(a.y) + static_cast<int64_t>(blockIdx.x) * a.k + at;
#pragma unroll
    for (int i = 0; i < 32; i++) {
      y[i] = narrow<T>(codes.one(i));
    }
  }
}

} // namespace mlxrs::cuda

#define MLXRS_LOOKUP(NAME, T, ...)                                                                             \
  extern "C" __global__ void lookup_##NAME##_##T(const __grid_constant__ mlxrs::cuda::LookupArgs a) {          \
    using namespace mlxrs::cuda;                                                                               \
    lookup<T, __VA_ARGS__>(a);                                                                                 \
  }
#define MLXRS_LOOKUPS(T)                          \
  MLXRS_LOOKUP(affine2, T, Affine<T, 2>)          \
  MLXRS_LOOKUP(affine3, T, Affine<T, 3>)          \
  MLXRS_LOOKUP(affine4, T, Affine<T, 4>)          \
  MLXRS_LOOKUP(affine5, T, Affine<T, 5>)          \
  MLXRS_LOOKUP(affine6, T, Affine<T, 6>)          \
  MLXRS_LOOKUP(affine8, T, Affine<T, 8>)          \
  MLXRS_LOOKUP(mxfp4, T, Floats<T, 4, 32>)        \
  MLXRS_LOOKUP(mxfp8, T, Floats<T, 8, 32>)        \
  MLXRS_LOOKUP(nvfp4, T, Floats<T, 4, 16>)        \
  MLXRS_LOOKUP(dense, T, Dense<T>)

MLXRS_LOOKUPS(bf16)
MLXRS_LOOKUPS(f16)
