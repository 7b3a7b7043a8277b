// x w.T for any number of rows of x: tensor cores multiply tiles of w with rows of x.
//
// A block computes 16 rows of w, or two times 16, for 8 to 64 rows of x. Its warps share the columns: warp i takes the blocks of 128 columns
// i, i + 8, and so on, and the sums of the warps are added in their order. An element of the result is a sum whose order depends on the
// number of columns alone. So a row's product is the same to the bit whatever rows are multiplied with it.
//
// Within 128 columns thread t of four has columns 32 t to 32 t + 31, which are adjacent in memory. A tensor core adds products of columns in
// an order of its own, but it takes both operands from the same thread, so any columns may stand there.
#pragma once

#include "cuda/args.h"
#include "cuda/codes.cuh"

namespace mlxrs::cuda {

constexpr int product_warps = 8, product_threads = product_warps * warp_size, tile_rows = 16, columns_of_thread = 32,
              columns_of_warp = 4 * columns_of_thread;

__device__ inline float gate_of(int kind, float x) {
  if (kind == 0) {
    return x / (1.0f + __expf(-x));
  }
  // gelu with the tanh approximation.
  float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + tanhf(inner));
}

// Which matrices the tiles are of, where they begin, and whether their codes begin at a multiple of 16 bytes: one tile of each matrix of a gate, or
// adjacent tiles. `tile` counts tiles of a gate's matrices, or groups of `Tiles`.
template <int Tiles>
__device__ inline void place_tiles(const LinearArgs& a, int tile, int (&which)[Tiles], int (&start)[Tiles], bool (&aligned)[Tiles]) {
#pragma unroll
  for (int r = 0; r < Tiles; r++) {
    int at = a.gate >= 0 ? tile : tile * Tiles + r, of = 0;
    if (a.gate >= 0) {
      of = r;
    } else {
      while (of + 1 < a.count && at >= a.of[of].tiles) {
        of++;
      }
      at -= of > 0 ? a.of[of - 1].tiles : 0;
    }
    which[r] = of;
    start[r] = at * tile_rows;
  }
#pragma unroll
  for (int r = 0; r < Tiles; r++) {
    aligned[r] = reinterpret_cast<uintptr_t>(a.of[which[r]].weight) % 16 == 0;
  }
}

// A thread's codes of a block of columns, in rows g and g + 8 of each tile; cleared outside of the matrix.
template <class Codes, int Tiles>
__device__ inline void load_codes(
    const LinearArgs& a, int block, int g, int t, const int (&which)[Tiles], const int (&start)[Tiles], const bool (&aligned)[Tiles],
    Codes (&codes)[Tiles][2]) {
  int at = block * columns_of_warp + t * columns_of_thread;
#pragma unroll
  for (int r = 0; r < Tiles; r++) {
    const Matrix& w = a.of[which[r]];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int row = start[r] + 8 * h + g;
      if (at < a.k && row < w.n) {
        codes[r][h].load(w.weight, w.scales, w.biases, row, a.k, at, a.group, aligned[r]);
      } else {
        codes[r][h].clear();
      }
    }
  }
}

// `Tiles` tiles of rows of w and `Eights` times eight rows of x.
template <class T, class Codes, int Eights, int Tiles>
__device__ void product(const LinearArgs& a) {
  constexpr int columns = 8 * Eights;
  // A column of sums is padded so that the threads of a warp write to different banks.
  constexpr int padded = tile_rows + 1;
  __shared__ float sums[product_warps][columns * padded];

  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, g = lane / 4, t = lane % 4;
  int first_row = blockIdx.y * columns;
  const T* x = static_cast<const T*>(a.x);

  // The tiles of this block: of both matrices of a gate, or adjacent ones of one matrix.
  int tile = blockIdx.x, which[Tiles], start[Tiles];
  bool aligned[Tiles];
  place_tiles(a, tile, which, start, aligned);
  float c[Tiles][Eights][4] = {};
  auto load = [&](int block, Codes (&codes)[Tiles][2]) { load_codes(a, block, g, t, which, start, aligned, codes); };

  // Codes are loaded some blocks of columns ahead: a block computes faster than memory answers. The first are loaded while the kernel before
  // this one ends.
  if (!a.early) {
    wait_for_previous();
  }
  constexpr int ahead = Eights <= 2 && Tiles == 1 && sizeof(Codes) <= 28 ? 3 : 1;
  int blocks = (a.k + columns_of_warp - 1) / columns_of_warp;
  Codes loaded[ahead + 1][Tiles][2];
#pragma unroll
  for (int d = 0; d < ahead; d++) {
    load(warp + d * product_warps, loaded[d]);
  }
  if (a.early) {
    wait_for_previous();
  }
  for (int block = warp; block < blocks; block += product_warps) {
    int at = block * columns_of_warp + t * columns_of_thread;
    load(block + ahead * product_warps, loaded[ahead]);
    const auto& codes = loaded[0];
#pragma unroll
    for (int i = 0; i < columns_of_thread / 8; i++) {
      uint32_t xs[Eights][4];
#pragma unroll
      for (int j = 0; j < Eights; j++) {
        int row = first_row + 8 * j + g;
        uint4 v = {};
        if (at < a.k && row < a.m) {
          v = *reinterpret_cast<const uint4*>(x + static_cast<int64_t>(row) * a.k + at + 8 * i);
        }
        arrange<Codes::pairs>(v, xs[j]);
      }
#pragma unroll
      for (int r = 0; r < Tiles; r++) {
        uint32_t upper[4], lower[4];
        codes[r][0].eight(i, upper);
        codes[r][1].eight(i, lower);
#pragma unroll
        for (int j = 0; j < Eights; j++) {
          multiply<T>(c[r][j], {upper[0], lower[0], upper[1], lower[1]}, xs[j][0], xs[j][1]);
          multiply<T>(c[r][j], {upper[2], lower[2], upper[3], lower[3]}, xs[j][2], xs[j][3]);
        }
      }
    }
#pragma unroll
    for (int d = 0; d < ahead; d++) {
#pragma unroll
      for (int r = 0; r < Tiles; r++) {
        loaded[d][r][0] = loaded[d + 1][r][0];
        loaded[d][r][1] = loaded[d + 1][r][1];
      }
    }
  }

  constexpr int elements = (columns * tile_rows + product_threads - 1) / product_threads;
  float gates[elements];
#pragma unroll
  for (int r = 0; r < Tiles; r++) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < Eights; j++) {
      float* to = sums[warp] + (8 * j + 2 * t) * padded + g;
      to[0] = c[r][j][0];
      to[padded] = c[r][j][1];
      to[8] = c[r][j][2];
      to[padded + 8] = c[r][j][3];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < elements; e++) {
      int i = threadIdx.x + e * product_threads, column = i / tile_rows, row = i % tile_rows;
      if (column >= columns) {
        break;
      }
      float sum = 0;
#pragma unroll
      for (int w = 0; w < product_warps; w++) {
        sum += sums[w][column * padded + row];
      }
      const Matrix& w = a.of[which[r]];
      int64_t to_row = first_row + column, to_column = start[r] + row;
      if (Tiles == 2 && a.gate >= 0 && r == 0) {
        gates[e] = rounded<T>(sum);
        continue;
      }
      if (Tiles == 2 && a.gate >= 0) {
        sum = rounded<T>(gate_of(a.gate, gates[e])) * rounded<T>(sum);
      }
      if (to_row < a.m && to_column < w.n) {
        static_cast<T*>(w.y)[to_row * w.stride + to_column] = narrow<T>(sum);
      }
    }
  }
}

} // namespace mlxrs::cuda

#define MLXRS_PRODUCT(NAME, T, CODES, EIGHTS, TILES)                                                                   \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::product_threads)                                         \
      NAME##_##EIGHTS##_##TILES(const __grid_constant__ mlxrs::cuda::LinearArgs a) {                                   \
    mlxrs::cuda::product<T, CODES, EIGHTS, TILES>(a);                                                                  \
  }
#define MLXRS_PRODUCTS(NAME, T, ...)        \
  namespace mlxrs::cuda { using NAME = __VA_ARGS__; } \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 1, 1) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 1, 2) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 2, 1) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 2, 2) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 4, 1) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 4, 2) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 8, 1)
