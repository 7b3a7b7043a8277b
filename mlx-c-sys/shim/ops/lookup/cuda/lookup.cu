// y[i] = the unpacked row indices[i] of a matrix [n, k], in bf16 or f16. Without indices, the rows `first`, `first` +
// 1, and so on. An index out of range is reported, and row 0 is read in its place. Each thread unpacks 32 adjacent
// elements (one unit of codes.cuh). Bound: memory bandwidth.
#include "cuda/args.h"
#include "cuda/codes.cuh"
#include "cuda/report.cuh"

namespace mlxrs::cuda {

template <class T, class Codes>
__device__ void lookup(const LookupArgs& a) {
  wait_for_previous_alone();
  int per_row = a.k / 32;
  int64_t task = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, row = task / per_row;
  int at = static_cast<int>(task % per_row) * 32;
  if (row >= a.count) {
    return;
  }
  uint4* y = reinterpret_cast<uint4*>(static_cast<T*>(a.y) + row * a.k + at);
  if (a.indices != nullptr) {
    uint32_t given = a.indices[row];
    row = a.is_signed ? static_cast<int64_t>(static_cast<int32_t>(given)) : static_cast<int64_t>(given);
    row = row < 0 ? row + a.n : row;
    if (row < 0 || row >= a.n) {
      report(a.report, row < 0 ? row - a.n : row, a.n, 1);
      row = 0;
    }
  } else {
    row += a.first;
  }
  Codes codes;
  codes.load(a.weight, a.scales, a.biases, static_cast<uint32_t>(row * per_row + at / 32), a.group_bits, reinterpret_cast<uintptr_t>(a.weight) % 16 == 0);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t v[4];
    codes.eight(i, v);
    // Reverses the order of `Codes::pairs`.
    y[i] = Codes::pairs == Pairs::adjacent ? make_uint4(v[0], v[1], v[2], v[3])
                                           : make_uint4(
                                                 __byte_perm(v[0], v[1], 0x5410), __byte_perm(v[2], v[3], 0x5410),
                                                 __byte_perm(v[0], v[1], 0x7632), __byte_perm(v[2], v[3], 0x7632));
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
  MLXRS_LOOKUP(dense, T, DenseCodes<T>)

MLXRS_LOOKUPS(bf16)
MLXRS_LOOKUPS(f16)
