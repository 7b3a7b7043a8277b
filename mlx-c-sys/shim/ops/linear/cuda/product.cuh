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

  // Codes are loaded some blocks of columns ahead: a block computes faster than memory answers.
  constexpr int ahead = Eights <= 2 && Tiles == 1 && sizeof(Codes) <= 28 ? 3 : 1;
  int blocks = (a.k + columns_of_warp - 1) / columns_of_warp;
  Codes loaded[ahead + 1][Tiles][2];
#pragma unroll
  for (int d = 0; d < ahead; d++) {
    load(warp + d * product_warps, loaded[d]);
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
        static_cast<T*>(w.y)[to_row * w.n + to_column] = narrow<T>(sum);
      }
    }
  }
}

// The same for many rows of x, to the bit: a block computes 128 rows of w, or 64 of each matrix of a gate, for 128 rows of x (64 where codes
// fill many registers). Its warps take all columns, in the order in which `product` adds them: first those of its warp 0, then those of its
// warp 1, and so on. Blocks of columns of x are in shared memory, one that is used and one that is loaded. A row has 16 pieces of 16 bytes
// there, in an order that depends on the row, so that threads read from different banks.
constexpr int many_threads = 256;

template <class Codes>
constexpr int many_eights = sizeof(Codes) > 28 ? 4 : 8;

__device__ inline int piece_of(int row, int piece) {
  return row * 16 + (piece ^ ((row & 1) << 2 | (row >> 1 & 3)));
}

template <class T, class Codes>
__device__ void many_products(const LinearArgs& a) {
  constexpr int eights = many_eights<Codes>, tiles = 2, many_rows = 16 * eights;
  extern __shared__ __align__(16) uint4 shared[];
  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, g = lane / 4, t = lane % 4;
  int first_row = blockIdx.y * many_rows, own_row = warp / 4 * (many_rows / 2);
  const T* x = static_cast<const T*>(a.x);

  int which[tiles], start[tiles];
  bool aligned[tiles];
  place_tiles(a, blockIdx.x * 4 + warp % 4, which, start, aligned);
  auto load = [&](int block, Codes (&codes)[tiles][2]) { load_codes(a, block, g, t, which, start, aligned, codes); };
  auto fetch = [&](int block, int stage) {
#pragma unroll
    for (int i = 0; i < many_rows * 16 / many_threads; i++) {
      int piece = threadIdx.x + i * many_threads, row = piece / 16, of = piece % 16;
      int at = block * columns_of_warp + of * 8;
      uint4* to = shared + stage * many_rows * 16 + piece_of(row, of);
      if (first_row + row < a.m && at < a.k) {
        uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address),
                     "l"(x + static_cast<int64_t>(first_row + row) * a.k + at));
      } else {
        *to = make_uint4(0, 0, 0, 0);
      }
    }
    asm volatile("cp.async.commit_group;");
  };

  int blocks = (a.k + columns_of_warp - 1) / columns_of_warp;
  // The block after another, or `blocks` at the end.
  auto after = [&](int block) {
    int next = block + product_warps;
    return next < blocks ? next : block % product_warps + 1 < min(product_warps, blocks) ? block % product_warps + 1 : blocks;
  };
  float sum[tiles][eights][4] = {}, c[tiles][eights][4] = {};
  Codes codes[tiles][2];
  load(0, codes);
  fetch(0, 0);
  int stage = 0;
  for (int block = 0; block < blocks; stage ^= 1) {
    int next = after(block);
    asm volatile("cp.async.wait_all;");
    __syncthreads();
    if (next < blocks) {
      fetch(next, stage ^ 1);
    }
    const uint4* xs = shared + stage * many_rows * 16;
#pragma unroll
    for (int i = 0; i < columns_of_thread / 8; i++) {
      uint32_t w[tiles][2][4];
#pragma unroll
      for (int r = 0; r < tiles; r++) {
        codes[r][0].eight(i, w[r][0]);
        codes[r][1].eight(i, w[r][1]);
      }
#pragma unroll
      for (int j = 0; j < eights; j++) {
        uint32_t v[4];
        arrange<Codes::pairs>(xs[piece_of(own_row + 8 * j + g, 4 * t + i)], v);
#pragma unroll
        for (int r = 0; r < tiles; r++) {
          multiply<T>(c[r][j], {w[r][0][0], w[r][1][0], w[r][0][1], w[r][1][1]}, v[0], v[1]);
          multiply<T>(c[r][j], {w[r][0][2], w[r][1][2], w[r][0][3], w[r][1][3]}, v[2], v[3]);
        }
      }
    }
    if (next < blocks) {
      load(next, codes);
    }
    if (next >= blocks || next % product_warps != block % product_warps) {
#pragma unroll
      for (int r = 0; r < tiles; r++) {
#pragma unroll
        for (int j = 0; j < eights; j++) {
#pragma unroll
          for (int e = 0; e < 4; e++) {
            sum[r][j][e] += c[r][j][e];
            c[r][j][e] = 0;
          }
        }
      }
    }
    block = next;
  }

#pragma unroll
  for (int j = 0; j < eights; j++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int64_t row = first_row + own_row + 8 * j + 2 * t + e % 2;
      if (row >= a.m) {
        continue;
      }
#pragma unroll
      for (int r = 0; r < tiles; r++) {
        int column = start[r] + g + e / 2 * 8;
        float y = sum[r][j][e];
        if (a.gate >= 0) {
          if (r == 0) {
            continue;
          }
          y = rounded<T>(gate_of(a.gate, rounded<T>(sum[0][j][e]))) * rounded<T>(y);
        }
        const Matrix& w = a.of[which[r]];
        if (column < w.n) {
          static_cast<T*>(w.y)[row * w.n + column] = narrow<T>(y);
        }
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
#define MLXRS_MANY(NAME, T, CODES)                                                                                     \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::many_threads, 1)                                            \
      NAME##_many(const __grid_constant__ mlxrs::cuda::LinearArgs a) {                                                 \
    mlxrs::cuda::many_products<T, CODES>(a);                                                                           \
  }
#define MLXRS_PRODUCTS(NAME, T, ...)        \
  namespace mlxrs::cuda { using NAME = __VA_ARGS__; } \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 1, 1) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 1, 2) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 2, 1) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 2, 2) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 4, 1) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 4, 2) \
  MLXRS_PRODUCT(NAME, T, mlxrs::cuda::NAME, 8, 1) \
  MLXRS_MANY(NAME, T, mlxrs::cuda::NAME)
