// y[i] = the unpacked row indices[i] of a matrix [n, k], in bf16 or f16. Without indices, the rows `first`, `first` +
// 1, and so on. An index out of range is reported, and row 0 is read in its place. Each thread unpacks 32 adjacent
// elements (one unit of codes.cuh); the units of a warp are adjacent, and go through shared memory so that its stores
// are. Bound: memory bandwidth.
#include "cuda/args.h"
#include "cuda/codes.cuh"
#include "cuda/report.cuh"

namespace mlxrs::cuda {

constexpr int lookup_warps = 4;

template <class T, class Codes>
__device__ void lookup(const LookupArgs& a) {
  wait_for_previous_alone();
  __shared__ uint4 all_pieces[lookup_warps][4 * warp_size];
  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, per_row = a.k / 32;
  int64_t first = (static_cast<int64_t>(blockIdx.x) * lookup_warps + warp) * warp_size, end = static_cast<int64_t>(a.count) * per_row;
  int64_t task = min(first + lane, end - 1), row = task / per_row;
  int at = static_cast<int>(task - row * per_row);
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
  codes.load(a.weight, a.scales, a.biases, static_cast<uint32_t>(row * per_row + at), a.group_bits, reinterpret_cast<uintptr_t>(a.weight) % 16 == 0);
  // Piece i of a unit has 8 elements. The XOR avoids bank conflicts.
  uint4* pieces = all_pieces[warp];
  auto place = [](int unit, int i) { return 4 * unit + (i ^ (unit / 2 % 4)); };
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t v[4];
    codes.eight(i, v);
    // Reverses the order of `Codes::pairs`.
    pieces[place(lane, i)] = Codes::pairs == Pairs::adjacent ? make_uint4(v[0], v[1], v[2], v[3])
                                                             : make_uint4(
                                                                   __byte_perm(v[0], v[1], 0x5410), __byte_perm(v[2], v[3], 0x5410),
                                                                   __byte_perm(v[0], v[1], 0x7632), __byte_perm(v[2], v[3], 0x7632));
  }
  __syncwarp();
  uint4* y = static_cast<uint4*>(a.y) + 4 * first;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int piece = i * warp_size + lane;
    if (first + piece / 4 < end) {
      y[piece] = pieces[place(piece / 4, piece % 4)];
    }
  }
}

} // namespace mlxrs::cuda

#define MLXRS_LOOKUP(NAME, T, ...)                                                                             \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::lookup_warps * mlxrs::cuda::warp_size) lookup_##NAME##_##T(const __grid_constant__ mlxrs::cuda::LookupArgs a) {          \
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
