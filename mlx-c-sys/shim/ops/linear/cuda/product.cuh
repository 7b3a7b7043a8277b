// y = x w^T for few rows of x, with tensor cores: x [m, k], w [n, k] dense or packed, sums in float32, y in x's
// type (bf16 or f16). With a gate, y = gate(x a^T) * (x b^T) of two matrices.
//
// Grid: blockIdx.x selects one tile or two tiles of 16 rows of w (or one half tile of 8), blockIdx.y 8 to 64 rows of x.
// A block has 8 warps. Warp i takes the blocks of 128 columns (of k) number i, i + 8, and so on. At the end the sums of
// the warps are added in the order of the warps.
// Order of sums: it depends on the number of columns only. So a row's result is the same to the bit for any number of
// other rows.
// Registers: within a block of 128 columns, thread t of the four that share a row holds columns 32 t to 32 t + 31,
// which are adjacent in memory. The mma instruction expects another assignment of columns to threads. Both operands are
// permuted in the same way, so each product still has matching columns.
// Norm: a `normed` product has one row of x, which is the norm of other arrays. Each block computes it first, to shared memory:
// that takes less time than a kernel of its own. The first block writes the results of the norm, for later kernels.
#pragma once

#include "cuda/args.h"
#include "cuda/codes.cuh"
#include "ops/norm/cuda/row.cuh"

namespace mlxrs::cuda {

constexpr int product_warps = 8, product_threads = product_warps * warp_size, tile_rows = 16, columns_of_thread = 32,
              columns_of_warp = 4 * columns_of_thread;
static_assert(product_threads == norm_threads);

// The least number of blocks that a multiprocessor shall hold (0: no limit). With few rows, speed depends on the number
// of loads in flight.
template <class Codes, int Eights, int Tiles>
constexpr int resident_blocks = Eights > 1 || Tiles < 2 ? 0 : sizeof(Codes) <= 24 ? 4 : sizeof(Codes) <= 40 ? 3 : 2;

__device__ inline float gate_of(int kind, float x) {
  if (kind == 0) {
    return x / (1.0f + __expf(-x));
  }
  // GELU with the tanh approximation: x (1 + tanh(u)) / 2 = x / (1 + e^(-2 u)).
  float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x / (1.0f + __expf(-2.0f * inner));
}

// For each tile of the block: its matrix, its first row, and whether the matrix begins at a multiple of 16 bytes. With
// a gate the tiles are tile number `tile` of each matrix; else they are `Tiles` adjacent tiles, and `tile` counts such
// groups.
template <int Tiles, int Halves = 2>
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
    start[r] = at * (8 * Halves);
  }
#pragma unroll
  for (int r = 0; r < Tiles; r++) {
    aligned[r] = reinterpret_cast<uintptr_t>(a.of[which[r]].weight) % 16 == 0;
  }
}

// For rows g and g + 8 of each tile: the number of the unit of 32 elements with which this thread begins, or `outside`
// for a row after the last one.
constexpr uint32_t outside = ~0u;
template <int Tiles, int Halves>
__device__ inline void find_rows(
    const LinearArgs& a, int g, int t, const int (&which)[Tiles], const int (&start)[Tiles], uint32_t (&units)[Tiles][Halves]) {
#pragma unroll
  for (int r = 0; r < Tiles; r++) {
#pragma unroll
    for (int h = 0; h < Halves; h++) {
      int row = start[r] + 8 * h + g;
      units[r][h] = row < a.of[which[r]].n ? static_cast<uint32_t>(row) * (a.k / 32) + t : outside;
    }
  }
}

// Writes the norm of one row to shared memory, and in the first block its results to memory.
template <class T>
__device__ inline void compute_norm(T* to, NormRow<T, joined_pairs>& row, const NormArgs& a) {
  bool is_first = blockIdx.x == 0;
  auto write = [](void* to, int at, uint32_t word) { *reinterpret_cast<uint32_t*>(static_cast<T*>(to) + at) = word; };
  row.load_row(a, 0);
  row.add(a, [&](int at, uint32_t word) {
    if (is_first) {
      write(a.sum, at, word);
    }
  });
  row.norm(a, [&](int at, uint32_t word) {
    write(to, at, word);
    if (is_first) {
      write(a.normed, at, word);
    }
  });
  __syncthreads();
}

// Computes `Tiles` tiles of 8 * `Halves` rows of w for 8 * `Eights` rows of x. With `HasNorm`, x is the one row of the norm.
template <class T, class Codes, int Eights, int Tiles, int Halves, bool HasNorm = false>
__device__ void product(const LinearArgs& a, const NormArgs& norm = {}) {
  constexpr int columns = 8 * Eights, rows = 8 * Halves;
  // The padding avoids bank conflicts when the threads of a warp write.
  constexpr int padded = rows + 1;
  __shared__ float sums[product_warps][HasNorm ? Tiles * rows : columns * padded];
  extern __shared__ __align__(16) uint4 shared[];
  T* normed = reinterpret_cast<T*>(shared); // [k], with HasNorm

  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, g = lane / 4, t = lane % 4;
  int first_row = blockIdx.y * columns;
  const T* x = static_cast<const T*>(a.x);

  // The tiles of this block: one of each matrix with a gate, else adjacent ones.
  int tile = blockIdx.x, which[Tiles], start[Tiles];
  bool aligned[Tiles];
  place_tiles<Tiles, Halves>(a, tile, which, start, aligned);
  uint32_t units[Tiles][Halves];
  find_rows(a, g, t, which, start, units);
  float c[Tiles][Eights][4] = {};
  // Loads the thread's units of one block of columns, or zeros outside of the matrix.
  auto load = [&](int block, Codes (&codes)[Tiles][Halves]) {
    int at = block * columns_of_warp;
#pragma unroll
    for (int r = 0; r < Tiles; r++) {
      const Matrix& w = a.of[which[r]];
#pragma unroll
      for (int h = 0; h < Halves; h++) {
        if (at + t * columns_of_thread < a.k && units[r][h] != outside) {
          codes[r][h].load(w.weight, w.scales, w.biases, units[r][h] + at / 32, a.group_bits, aligned[r]);
        } else {
          codes[r][h].clear();
        }
      }
    }
  };
  // Elements 8 i to 8 i + 7 of the thread's 32 columns, in row 8 j + g of x.
  auto load_x = [&](int block, int j, int i) {
    int at = block * columns_of_warp + t * columns_of_thread, row = first_row + 8 * j + g;
    uint4 v = {};
    if (HasNorm) {
      if (at < a.k && row == 0) {
        v = *reinterpret_cast<const uint4*>(normed + at + 8 * i);
      }
    } else if (at < a.k && row < a.m) {
      v = *reinterpret_cast<const uint4*>(x + static_cast<int64_t>(row) * a.k + at + 8 * i);
    }
    return v;
  };

  // Weights are prefetched several blocks of columns ahead to hide the latency of memory. With `early` the first ones
  // are loaded before the previous kernel has finished.
  if (!a.early) {
    wait_for_previous();
  }
  // The loop is unrolled over `stages` blocks of columns, so that each prefetched unit stays in the registers it was
  // loaded to.
  constexpr int stages = Tiles == 2 && (Eights == 1 || Eights == 8) ? 1 : Eights <= 2 && Tiles == 1 && sizeof(Codes) <= 28 ? 4 : 2;
  constexpr bool has_x_ahead = Eights == 1 && Tiles == 1 && !HasNorm;
  int blocks = (a.k + columns_of_warp - 1) / columns_of_warp;
  Codes loaded[stages][Tiles][Halves];
#pragma unroll
  for (int stage = 0; stage < stages; stage++) {
    load(warp + stage * product_warps, loaded[stage]);
  }
  NormRow<T, joined_pairs> row;
  if (HasNorm) {
    row.load_weights(norm);
  }
  if (a.early) {
    wait_for_previous();
  }
  if (HasNorm) {
    compute_norm(normed, row, norm);
  }
  uint4 x_ahead[has_x_ahead ? 4 : 1];
  if (has_x_ahead) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      x_ahead[i] = load_x(warp, 0, i);
    }
  }
  for (int first = warp; first < blocks; first += stages * product_warps) {
#pragma unroll
    for (int stage = 0; stage < stages; stage++) {
      int block = first + stage * product_warps;
      if (block >= blocks) {
        break;
      }
      const auto& codes = loaded[stage];
#pragma unroll
      for (int i = 0; i < columns_of_thread / 8; i++) {
        uint32_t xs[Eights][4];
#pragma unroll
        for (int j = 0; j < Eights; j++) {
          if (has_x_ahead) {
            arrange<Codes::pairs>(x_ahead[i], xs[j]);
            x_ahead[i] = load_x(block + product_warps, 0, i);
          } else {
            arrange<Codes::pairs>(load_x(block, j, i), xs[j]);
          }
        }
#pragma unroll
        for (int r = 0; r < Tiles; r++) {
          uint32_t upper[4], lower[4] = {};
          codes[r][0].eight(i, upper);
          if (Halves == 2) {
            codes[r][Halves - 1].eight(i, lower);
          }
#pragma unroll
          for (int j = 0; j < Eights; j++) {
            multiply<T>(c[r][j], {upper[0], lower[0], upper[1], lower[1]}, xs[j][0], xs[j][1]);
            multiply<T>(c[r][j], {upper[2], lower[2], upper[3], lower[3]}, xs[j][2], xs[j][3]);
          }
        }
      }
      load(block + stages * product_warps, loaded[stage]);
    }
  }

  if (HasNorm) {
    // Only column 0 of the results is used.
    if (t == 0) {
#pragma unroll
      for (int r = 0; r < Tiles; r++) {
        sums[warp][r * rows + g] = c[r][0][0];
        if (Halves == 2) {
          sums[warp][r * rows + 8 + g] = c[r][0][2];
        }
      }
    }
    __syncthreads();
    auto sum_of = [&](int i) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < product_warps; w++) {
        sum += sums[w][i];
      }
      return sum;
    };
    bool has_gate = Tiles == 2 && a.gate >= 0;
    int i = threadIdx.x, r = i / rows;
    if (i >= (has_gate ? 1 : Tiles) * rows) {
      return;
    }
    float y = sum_of(i);
    if (has_gate) {
      y = rounded<T>(gate_of(a.gate, rounded<T>(y))) * rounded<T>(sum_of(rows + i));
    }
    bool is_second = Tiles == 2 && r == 1;
    const Matrix& w = a.of[is_second ? which[Tiles - 1] : which[0]];
    int to_column = (is_second ? start[Tiles - 1] : start[0]) + i % rows;
    if (to_column < w.n) {
      static_cast<T*>(w.y)[to_column] = narrow<T>(y);
    }
    return;
  }
  constexpr int own = (columns * rows + product_threads - 1) / product_threads;
  float gates[own];
#pragma unroll
  for (int r = 0; r < Tiles; r++) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < Eights; j++) {
      float* to = sums[warp] + (8 * j + 2 * t) * padded + g;
      to[0] = c[r][j][0];
      to[padded] = c[r][j][1];
      if (Halves == 2) {
        to[8] = c[r][j][2];
        to[padded + 8] = c[r][j][3];
      }
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < own; e++) {
      int i = threadIdx.x + e * product_threads, column = i / rows, row = i % rows;
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

// A kernel's name ends with `normed` or the number of eight rows of x, and the number of tiles of 16 rows (0: one tile of 8).
#define MLXRS_PRODUCT(NAME, T, CODES, EIGHTS, TILES)                                                                   \
  extern "C" __global__ void __launch_bounds__(                                                                        \
      mlxrs::cuda::product_threads, mlxrs::cuda::resident_blocks<mlxrs::cuda::CODES, EIGHTS, TILES>)                   \
      NAME##_##EIGHTS##_##TILES(const __grid_constant__ mlxrs::cuda::LinearArgs a) {                                   \
    mlxrs::cuda::product<T, mlxrs::cuda::CODES, EIGHTS, TILES == 0 ? 1 : TILES, TILES == 0 ? 1 : 2>(a);                \
  }
#define MLXRS_NORMED_PRODUCT(NAME, T, CODES, TILES)                                                                    \
  extern "C" __global__ void __launch_bounds__(                                                                        \
      mlxrs::cuda::product_threads, mlxrs::cuda::resident_blocks<mlxrs::cuda::CODES, 1, TILES>)                        \
      NAME##_normed_##TILES(                                                                                              \
          const __grid_constant__ mlxrs::cuda::LinearArgs a, const __grid_constant__ mlxrs::cuda::NormArgs norm) {     \
    mlxrs::cuda::product<T, mlxrs::cuda::CODES, 1, TILES == 0 ? 1 : TILES, TILES == 0 ? 1 : 2, true>(a, norm);         \
  }
#define MLXRS_PRODUCTS(NAME, T, ...)        \
  namespace mlxrs::cuda { using NAME = __VA_ARGS__; } \
  MLXRS_NORMED_PRODUCT(NAME, T, NAME, 0) \
  MLXRS_NORMED_PRODUCT(NAME, T, NAME, 1) \
  MLXRS_NORMED_PRODUCT(NAME, T, NAME, 2) \
  MLXRS_PRODUCT(NAME, T, NAME, 1, 0) \
  MLXRS_PRODUCT(NAME, T, NAME, 1, 1) \
  MLXRS_PRODUCT(NAME, T, NAME, 1, 2) \
  MLXRS_PRODUCT(NAME, T, NAME, 2, 1) \
  MLXRS_PRODUCT(NAME, T, NAME, 2, 2) \
  MLXRS_PRODUCT(NAME, T, NAME, 4, 1) \
  MLXRS_PRODUCT(NAME, T, NAME, 4, 2) \
  MLXRS_PRODUCT(NAME, T, NAME, 8, 1) \
  MLXRS_PRODUCT(NAME, T, NAME, 8, 2)
