// y = x w^T for many rows of x, with tensor cores: x [m, k], w [n, k] with dense elements of x's type (bf16 or f16),
// sums in float32. Packed weights are unpacked to memory before (product.cpp). Results equal those of `product` with
// the packed weights to the bit.
//
// Grid: blockIdx.x is the tile of 128 or 64 rows of x, blockIdx.y the tile of 128 rows of w (64 rows of each of the two
// matrices with a gate). A block has 8 warps, as 2 (x) times 4 (w); each warp computes 32 rows of w for half of the
// rows of x.
// Order of sums: each warp adds the blocks of 128 columns in the order in which `product` does: first the blocks of its
// warp 0, then those of its warp 1, and so on.
// Memory: blocks of 128 columns of both operands go through shared memory with cp.async. Some stages are loaded while
// one is multiplied.
#pragma once

#include "ops/linear/cuda/product.cuh"

namespace mlxrs::cuda {

constexpr int many_threads = 256, many_w_rows = 128, pieces = columns_of_warp / 8;

// The place in shared memory, in pieces of 16 bytes, of the elements 32 t + 8 i to 32 t + 8 i + 7 of a row. The XOR
// avoids bank conflicts: the eight threads that read together (t = 0..3 of two adjacent rows) hit all banks.
__device__ inline int piece_of(int row, int i, int t) {
  return row * pieces + ((4 * i + t) ^ ((row & 1) << 2));
}

// Starts an asynchronous copy of 16 bytes to shared memory, or writes zeros if not `is_there`.
__device__ inline void fetch_piece(uint4* to, const void* from, bool is_there) {
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(is_there ? 16 : 0));
}

template <class T, Pairs P, int Eights>
__device__ void many_products(const LinearArgs& a) {
  constexpr int tiles = 2, x_rows = 16 * Eights, stage_size = (many_w_rows + x_rows) * pieces, stages = many_stages(has_room, x_rows);
  extern __shared__ __align__(16) uint4 shared[];
  wait_for_previous();
  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, g = lane / 4, t = lane % 4;
  int first_row = blockIdx.x * x_rows, own_x = warp / 4 * (x_rows / 2), own_w = warp % 4 * 32;
  const T* x = static_cast<const T*>(a.x);

  // A thread copies one piece of every sixteenth row, which is one row of each tile of w.
  int fetch_row = threadIdx.x / pieces, fetch_i = threadIdx.x % pieces / 4, fetch_t = threadIdx.x % 4, fetch_at = 32 * fetch_t + 8 * fetch_i;
  const T* w_rows[many_w_rows / tile_rows];
#pragma unroll
  for (int i = 0; i < many_w_rows / tile_rows; i += tiles) {
    int which[tiles], start[tiles];
    bool aligned[tiles];
    place_tiles(a, blockIdx.y * 4 + i / tiles, which, start, aligned);
#pragma unroll
    for (int r = 0; r < tiles; r++) {
      const Matrix& w = a.of[which[r]];
      int row = start[r] + fetch_row;
      w_rows[i + r] = row < w.n ? static_cast<const T*>(w.weight) + static_cast<int64_t>(row) * a.k : nullptr;
    }
  }
  auto fetch = [&](int block, int stage) {
    int at = block * columns_of_warp + fetch_at;
    uint4* to = shared + stage * stage_size;
#pragma unroll
    for (int i = 0; i < many_w_rows / tile_rows; i++) {
      bool is_there = w_rows[i] != nullptr && at < a.k;
      fetch_piece(to + piece_of(i * tile_rows + fetch_row, fetch_i, fetch_t), is_there ? w_rows[i] + at : a.x, is_there);
    }
    to += many_w_rows * pieces;
#pragma unroll
    for (int i = 0; i < x_rows / tile_rows; i++) {
      int row = i * tile_rows + fetch_row;
      bool is_there = first_row + row < a.m && at < a.k;
      fetch_piece(
          to + piece_of(row, fetch_i, fetch_t), is_there ? x + static_cast<int64_t>(first_row + row) * a.k + at : a.x, is_there);
    }
  };

  int blocks = (a.k + columns_of_warp - 1) / columns_of_warp;
  // Iterates over the blocks of columns in the order of `product`: those of its warp 0, then those of its warp 1, and
  // so on.
  struct Order {
    int blocks, first = 0, block = 0;

    // Returns whether the next block belongs to the next warp of `product`.
    __device__ bool advance() {
      block += product_warps;
      bool is_last = block >= blocks;
      if (is_last) {
        block = ++first < product_warps ? min(first, blocks) : blocks;
      }
      return is_last;
    }
  };
  float sum[tiles][Eights][4] = {}, c[tiles][Eights][4] = {};
  int stage = 0;
  Order coming{blocks}, current{blocks};
  auto fetch_next = [&](int stage) {
    if (coming.block < blocks) {
      fetch(coming.block, stage);
      coming.advance();
    }
    // Commits an empty group too, because wait_group counts groups.
    asm volatile("cp.async.commit_group;");
  };
#pragma unroll
  for (int i = 0; i < stages - 1; i++) {
    fetch_next(i);
  }
  while (current.block < blocks) {
    asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2));
    __syncthreads();
    fetch_next(stage == 0 ? stages - 1 : stage - 1);
    const uint4 *ws = shared + stage * stage_size, *xs = ws + many_w_rows * pieces;
#pragma unroll
    for (int i = 0; i < columns_of_thread / 8; i++) {
      uint32_t w[tiles][2][4];
#pragma unroll
      for (int r = 0; r < tiles; r++) {
        arrange<P>(ws[piece_of(own_w + 16 * r + g, i, t)], w[r][0]);
        arrange<P>(ws[piece_of(own_w + 16 * r + 8 + g, i, t)], w[r][1]);
      }
#pragma unroll
      for (int j = 0; j < Eights; j++) {
        uint32_t v[4];
        arrange<P>(xs[piece_of(own_x + 8 * j + g, i, t)], v);
#pragma unroll
        for (int r = 0; r < tiles; r++) {
          multiply<T>(c[r][j], {w[r][0][0], w[r][1][0], w[r][0][1], w[r][1][1]}, v[0], v[1]);
          multiply<T>(c[r][j], {w[r][0][2], w[r][1][2], w[r][0][3], w[r][1][3]}, v[2], v[3]);
        }
      }
    }
    if (current.advance()) {
#pragma unroll
      for (int r = 0; r < tiles; r++) {
#pragma unroll
        for (int j = 0; j < Eights; j++) {
#pragma unroll
          for (int e = 0; e < 4; e++) {
            sum[r][j][e] += c[r][j][e];
            c[r][j][e] = 0;
          }
        }
      }
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
  }

  // Results go through shared memory, so that adjacent threads write adjacent elements.
  __syncthreads();
  constexpr int padded = many_w_rows + 8;
  T* ys = reinterpret_cast<T*>(shared);
  bool has_gate = a.gate >= 0;
#pragma unroll
  for (int j = 0; j < Eights; j++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      T* to = ys + (own_x + 8 * j + 2 * t + e % 2) * padded;
#pragma unroll
      for (int r = 0; r < tiles; r++) {
        float y = sum[r][j][e];
        if (!has_gate) {
          to[own_w + 16 * r + g + e / 2 * 8] = narrow<T>(y);
        } else if (r == 1) {
          y = rounded<T>(gate_of(a.gate, rounded<T>(sum[0][j][e]))) * rounded<T>(y);
          to[own_w / 2 + g + e / 2 * 8] = narrow<T>(y);
        }
      }
    }
  }
  __syncthreads();
  int columns = has_gate ? many_w_rows / 2 : many_w_rows, step = many_threads / columns;
  int column = threadIdx.x % columns, tile = blockIdx.y * (columns / tile_rows) + column / tile_rows, of = 0;
  while (!has_gate && of + 1 < a.count && tile >= a.of[of].tiles) {
    of++;
  }
  const Matrix& w = a.of[of];
  int to_column = (tile - (of > 0 ? a.of[of - 1].tiles : 0)) * tile_rows + column % tile_rows;
  if (to_column >= w.n) {
    return;
  }
  for (int row = threadIdx.x / columns; row < x_rows && first_row + row < a.m; row += step) {
    static_cast<T*>(w.y)[static_cast<int64_t>(first_row + row) * w.stride + to_column] = ys[row * padded + column];
  }
}

} // namespace mlxrs::cuda

#define MLXRS_MANY(T, PAIRS, ROWS)                                                                             \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::many_threads, 1)                                     \
      many_##PAIRS##_##T##_##ROWS(const __grid_constant__ mlxrs::cuda::LinearArgs a) {                          \
    mlxrs::cuda::many_products<mlxrs::cuda::T, mlxrs::cuda::Pairs::PAIRS, ROWS / 16>(a);                        \
  }
#define MLXRS_MANY_OF(T)        \
  MLXRS_MANY(T, adjacent, 64)   \
  MLXRS_MANY(T, adjacent, 128)  \
  MLXRS_MANY(T, halves, 64)     \
  MLXRS_MANY(T, halves, 128)
