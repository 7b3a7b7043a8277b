// y = x w^T with the tensor cores of Hopper's warp groups, for more rows of x than `product` multiplies well: the rows of a
// decode batch, and of prompts. x [m, k], w [n, k] dense or packed, sums in float32, y in x's type. Results equal those of
// `product` to the bit.
//
// Grid: a block has 128 rows of w (64 of each of the two matrices with a gate) and `Rows` rows of x. With one part,
// blockIdx.x is the group of rows of x and blockIdx.y the tile of w; else blockIdx.x is both, with groups as the fastest,
// and blockIdx.y the part.
// Parts: the 8 warps of `product` divide the columns. With one part a block computes the sums of these warps one after the
// other. With several, the blocks of a cluster divide the warps among them, and add their sums in the order of the warps
// through distributed shared memory. Few tiles of w need parts, or multiprocessors would be idle.
// Operands: wgmma takes rows of w as `a` from registers, in the assignment of columns to threads of `product`, and rows of x
// as `b` from shared memory, where their columns must have the same order. A kernel (`permute`) writes x in this order, so
// that one copy fetches the rows and columns of a stage.
// Memory: dense weights go through shared memory, copied by one thread some stages ahead. Packed weights go to registers, and
// are unpacked while the block of columns before is multiplied.
#pragma once

#include "cuda/cluster.cuh"
#include "cuda/group.cuh"
#include "ops/linear/cuda/batch.h"
#include "ops/linear/cuda/product.cuh"

namespace mlxrs::cuda {

// Writes x [m, k] as [groups of rows, blocks of 128 columns, 16, Rows, 4 words]: the 4 words are those of the four threads
// that share a row, and the 16 their words, 4 i + j for word j of `eight(i)`. Rows and columns outside of x are zeros.
// Grid: blockIdx.x is the block of columns, blockIdx.y 64 rows of x.
template <Pairs P, int Rows>
__device__ void permute(const uint4* x, uint32_t* to, int m, int k) {
  wait_for_previous();
  int row = blockIdx.y * 64 + threadIdx.x / 4, t = threadIdx.x % 4, at = blockIdx.x * columns_of_warp + t * columns_of_thread;
  if (row >= (m + Rows - 1) / Rows * Rows) {
    return;
  }
  to += (static_cast<int64_t>(row / Rows) * gridDim.x + blockIdx.x) * (Rows * columns_of_warp / 2);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t words[4];
    arrange<P>(row < m && at < k ? x[(static_cast<int64_t>(row) * k + at) / 8 + i] : uint4{}, words);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      to[((4 * i + j) * Rows + row % Rows) * 4 + t] = words[j];
    }
  }
}

// Iterates over the blocks of columns of a part: those of its first warp of `product`, then those of the next, to `end`.
struct BlocksOfPart {
  int blocks, warp, end, block;

  __device__ bool has_more() const {
    return block < blocks;
  }
  __device__ void advance() {
    block += product_warps;
    if (block >= blocks) {
      block = ++warp < end ? warp : blocks;
    }
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <class T, class Codes, int Rows, int Parts>
__device__ void batch_products(const LinearArgs& a, const Tiles& tiles) {
  constexpr bool is_packed = Codes::is_packed;
  constexpr int stages = batch_stages(Rows), stage_bytes = batch_stage_bytes(is_packed, Rows), kept = sums_of_block(Parts),
                x_bytes = Rows * 256, x_at = is_packed ? 0 : bytes_of_w, fetched = x_bytes + (is_packed ? 0 : 2 * part_of_w);
  // Blocks of columns whose packed weights are in registers.
  constexpr int ahead = !is_packed ? 1 : sizeof(Codes) <= 28 ? 3 : 2;
  extern __shared__ __align__(1024) uint4 shared[];
  __shared__ uint64_t barriers[2 * stages];
  // Tiles begin at multiples of 1,024 bytes.
  uint32_t base = (shared_address(shared) + 1023) / 1024 * 1024, full = shared_address(barriers), empty = full + 8 * stages;
  char* stage_at = reinterpret_cast<char*>(shared) + (base - shared_address(shared));
  float* sums = reinterpret_cast<float*>(stage_at); // [kept, Rows, padded_sums]
  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, g = lane / 4, t = lane % 4;
  bool has_gate = a.gate >= 0;
  int groups = (a.m + Rows - 1) / Rows, blocks = (a.k + columns_of_warp - 1) / columns_of_warp;
  int group = Parts == 1 ? blockIdx.x : blockIdx.x % groups, place = Parts == 1 ? blockIdx.y : blockIdx.x / groups;
  int first_row = group * Rows, part = Parts == 1 ? 0 : blockIdx.y, first = part * kept;
  BlocksOfPart coming{blocks, first, Parts == 1 ? product_warps : first + kept, first}, coming_w = coming;

  // The matrix of half a tile, which has 64 rows, and its first row. A matrix has a multiple of four tiles of 16 rows.
  auto find = [&](int half, int& of, int& start) {
    of = has_gate ? half : 0;
    int at = has_gate ? 4 * place : 8 * place + 4 * half;
    while (!has_gate && of + 1 < a.count && at >= a.of[of].tiles) {
      of++;
    }
    start = (at - (!has_gate && of > 0 ? a.of[of - 1].tiles : 0)) * tile_rows;
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) {
      start_barrier(full + 8 * i, 1);
      start_barrier(empty + 8 * i, product_warps);
    }
    publish_barriers();
  }
  __syncthreads();
  auto fetch_w = [&](int stage, int block) {
    if constexpr (!is_packed) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int of, start;
        find(half, of, start);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          uint32_t to = base + stage * stage_bytes + i * second_of_w + half * (part_of_w / 2);
          copy_tile(to, tiles.of[of], start, block * columns_of_warp + i * columns_of_copy, full + 8 * stage);
        }
      }
    }
  };
  const char* x = static_cast<const char*>(a.x) + static_cast<int64_t>(group) * blocks * x_bytes;
  auto fetch_x = [&](int stage, int block) {
    copy_bulk(base + stage * stage_bytes + x_at, x + static_cast<int64_t>(block) * x_bytes, x_bytes, full + 8 * stage);
  };
  // Fetches the first blocks of columns. Weights are fetched before the previous kernel has ended, if they are older.
  auto fetch_first = [&](int count) {
    auto of = coming;
    for (int i = 0; i < count && of.has_more(); i++, of.advance()) {
      arrive_and_expect(full + 8 * i, fetched);
      fetch_w(i, of.block);
    }
    if (a.early) {
      wait_for_previous();
    }
    for (int i = 0; i < count && coming.has_more(); i++, coming.advance()) {
      fetch_x(i, coming.block);
    }
  };
  // Fetches the next block of columns, to a stage of which turn `turn` has been multiplied by all warps.
  auto fetch_next = [&](int stage, int turn) {
    wait_for(empty + 8 * stage, turn % 2);
    arrive_and_expect(full + 8 * stage, fetched);
    fetch_w(stage, coming.block);
    fetch_x(stage, coming.block);
    coming.advance();
  };
  if (!a.early) {
    wait_for_previous();
  }
  float c[kept][Rows / 8][4] = {};
  if (warp == product_warps) {
    if (lane == 0) {
      fetch_first(stages);
      for (int stage = 0, turn = 0; coming.has_more();) {
        fetch_next(stage, turn);
        if (++stage == stages) {
          stage = 0, turn++;
        }
      }
    }
    __syncwarp();
  } else {
    int of, start;
    find(warp / 4, of, start);
    const Matrix& w = a.of[of];
    bool aligned = reinterpret_cast<uintptr_t>(w.weight) % 16 == 0;
    uint32_t units[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int row = start + warp % 4 * tile_rows + 8 * h + g;
      units[h] = row < w.n ? static_cast<uint32_t>(row) * (a.k / 32) + t : outside;
    }
    Codes loaded[ahead][2];
    auto load = [&](Codes (&codes)[2]) {
      int at = coming_w.block * columns_of_warp;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if (at + t * columns_of_thread < a.k && units[h] != outside) {
          codes[h].load(w.weight, w.scales, w.biases, units[h] + at / 32, a.group_bits, aligned);
        } else {
          codes[h].clear();
        }
      }
      if (coming_w.has_more()) {
        coming_w.advance();
      }
    };
    if (is_packed) {
#pragma unroll
      for (int i = 0; i < ahead; i++) {
        load(loaded[i]);
      }
      if (threadIdx.x == 0) {
        fetch_first(stages - 1);
      }
      __syncwarp();
    }
    if (a.early && !(is_packed && threadIdx.x == 0)) {
      wait_for_previous();
    }
    int count = 0, done = 0, stage = 0, turn = 0;
    for (int q = first; q < (Parts == 1 ? product_warps : first + kept) && q < blocks; q++) {
      count += (blocks - q + product_warps - 1) / product_warps;
    }
    // The operands of the stage's block of columns: f[2 i + h] are words 2 h and 2 h + 1 of `eight(i)`.
    auto read = [&](uint32_t (&f)[8][4], Codes (&codes)[2]) {
      auto take = [&](int i, const uint32_t (&upper)[4], const uint32_t (&lower)[4]) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          f[2 * i + h][0] = upper[2 * h], f[2 * i + h][1] = lower[2 * h];
          f[2 * i + h][2] = upper[2 * h + 1], f[2 * i + h][3] = lower[2 * h + 1];
        }
      };
      if constexpr (is_packed) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          uint32_t upper[4], lower[4];
          codes[0].eight(i, upper);
          codes[1].eight(i, lower);
          take(i, upper, lower);
        }
        load(codes);
        wait_for(full + 8 * stage, turn % 2);
      } else {
        wait_for(full + 8 * stage, turn % 2);
        // Copies of tiles XOR the number of a piece of 16 bytes with that of its row of 128 bytes. The gap before the second
        // part makes it another one, so that the threads that read together hit all banks.
        const char* row = stage_at + stage * stage_bytes + t / 2 * second_of_w + (warp * tile_rows + g) * 128;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          uint32_t upper[4], lower[4];
          int piece = (t % 2 * 4 + i) ^ ((g + t / 2 * 2) % 8);
          arrange<Codes::pairs>(*reinterpret_cast<const uint4*>(row + piece * 16), upper);
          arrange<Codes::pairs>(*reinterpret_cast<const uint4*>(row + 8 * 128 + piece * 16), lower);
          take(i, upper, lower);
        }
      }
    };
    // Multiplies one block of columns. With packed weights, prepares the operands of the next one meanwhile.
    auto multiply_block = [&](float (&sum)[Rows / 8][4], uint32_t (&f)[8][4], uint32_t (&next)[8][4], Codes (&codes)[2]) {
      if constexpr (!is_packed) {
        read(f, codes);
      }
      begin_products();
#pragma unroll
      for (int i = 0; i < 8; i++) {
        uint32_t at = base + stage * stage_bytes + x_at + i * Rows * 32;
        multiply_group<T>(sum, f[i], operand(at, Rows * 16, 128));
      }
      submit_products();
      int here = stage, last = stage == 0 ? stages - 1 : stage - 1, last_turn = stage == 0 ? turn - 1 : turn;
      if (++stage == stages) {
        stage = 0, turn++;
      }
      done++;
      if constexpr (is_packed) {
        if (threadIdx.x == 0 && coming.has_more()) {
          // The last stage is empty from the start: the parity of a phase that has not begun counts as ended.
          fetch_next(last, last_turn + 2);
        }
        __syncwarp();
        if (done < count) {
          read(next, codes);
        }
      }
      finish_products();
      if (lane == 0) {
        arrive(empty + 8 * here);
      }
    };
    uint32_t f[is_packed ? 2 : 1][8][4];
    if (is_packed && count > 0) {
      read(f[0], loaded[0]);
    }
    // Registers need constant indices, so the loop has a copy for each turn of the operands and of the loaded codes.
    int turn_of_codes = 0;
    auto multiply_warp = [&](int q, float (&sum)[Rows / 8][4]) {
      for (int block = first + q; block < blocks; block += product_warps) {
        if constexpr (!is_packed) {
          multiply_block(sum, f[0], f[0], loaded[0]);
        } else {
          constexpr int turns = 2 * ahead;
#pragma unroll
          for (int i = 0; i < turns; i++) {
            if (turn_of_codes == i) {
              multiply_block(sum, f[i % 2], f[(i + 1) % 2], loaded[(i + 1) % ahead]);
            }
          }
          turn_of_codes = turn_of_codes + 1 == turns ? 0 : turn_of_codes + 1;
        }
      }
    };
    if constexpr (Parts == 1) {
      float one[Rows / 8][4] = {};
      for (int q = 0; q < product_warps; q++) {
        multiply_warp(q, one);
#pragma unroll
        for (int j = 0; j < Rows / 8; j++) {
#pragma unroll
          for (int e = 0; e < 4; e++) {
            c[0][j][e] += one[j][e];
            one[j][e] = 0;
          }
        }
      }
    } else {
#pragma unroll
      for (int q = 0; q < kept; q++) {
        multiply_warp(q, c[q]);
      }
    }
  }

  // All stages have been multiplied, so the sums can take their place.
  __syncthreads();
  if (warp < product_warps) {
#pragma unroll
    for (int q = 0; q < kept; q++) {
#pragma unroll
      for (int j = 0; j < Rows / 8; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          sums[(q * Rows + 8 * j + 2 * t + e % 2) * padded_sums + warp * tile_rows + g + e / 2 * 8] = c[q][j][e];
        }
      }
    }
  }
  if (Parts > 1) {
    wait_for_cluster();
  } else {
    __syncthreads();
  }
  // Four adjacent columns of a row, added in the order of the warps of `product`.
  auto total = [&](int row, int column) {
    auto* at = reinterpret_cast<const float4*>(sums + row * padded_sums + column);
    if (Parts == 1) {
      return *at;
    }
    float4 sum{};
#pragma unroll
    for (int q = 0; q < product_warps; q++) {
      float4 v = of_block(at + q % kept * (Rows * padded_sums / 4), q / kept);
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    return sum;
  };
  auto gated = [&](float gate, float up) { return rounded<T>(gate_of(a.gate, rounded<T>(gate))) * rounded<T>(up); };
  // A block of a cluster writes its share of the rows.
  constexpr int own = Rows / Parts;
  int fours = (has_gate ? tile_of_w : 2 * tile_of_w) / 4;
  for (int i = threadIdx.x; i < own * fours; i += batch_threads(is_packed)) {
    int row = part * own + i / fours, column = i % fours * 4;
    if (first_row + row >= a.m) {
      break;
    }
    float4 y = total(row, column);
    if (has_gate) {
      float4 up = total(row, column + tile_of_w);
      y = {gated(y.x, up.x), gated(y.y, up.y), gated(y.z, up.z), gated(y.w, up.w)};
    }
    int of, start;
    find(column / tile_of_w, of, start);
    const Matrix& w = a.of[of];
    int to_column = start + column % tile_of_w;
    T* to = static_cast<T*>(w.y) + static_cast<int64_t>(first_row + row) * w.stride + to_column;
    if (to_column + 4 <= w.n && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
      *reinterpret_cast<uint2*>(to) = {pair<T>(y.x, y.y), pair<T>(y.z, y.w)};
    } else {
      float four[] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (to_column + e < w.n) {
          to[e] = narrow<T>(four[e]);
        }
      }
    }
  }
  if (Parts > 1) {
    // Other blocks may still read this block's sums.
    wait_for_cluster();
  }
}
#endif

} // namespace mlxrs::cuda

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define MLXRS_BATCH(NAME, T, CODES, ROWS, PARTS)                                                                          \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::batch_threads(mlxrs::cuda::CODES::is_packed), 1)              \
      NAME##_batch_##ROWS##_##PARTS(                                                                                      \
          const __grid_constant__ mlxrs::cuda::LinearArgs a, const __grid_constant__ mlxrs::cuda::Tiles tiles) {          \
    mlxrs::cuda::batch_products<mlxrs::cuda::T, mlxrs::cuda::CODES, ROWS, PARTS>(a, tiles);                               \
  }
#else
// Other architectures have no kernel of this name, which the host asks for (multiplies_by_groups).
#define MLXRS_BATCH(NAME, T, CODES, ROWS, PARTS)
#endif
// The kernels of a coding. product.cpp chooses among them.
#define MLXRS_BATCHES(NAME, T, ...)                   \
  namespace mlxrs::cuda { using NAME = __VA_ARGS__; } \
  MLXRS_BATCH(NAME, T, NAME, 32, 1)                   \
  MLXRS_BATCH(NAME, T, NAME, 32, 8)                   \
  MLXRS_BATCH(NAME, T, NAME, 64, 1)                   \
  MLXRS_BATCH(NAME, T, NAME, 64, 8)                   \
  MLXRS_BATCH(NAME, T, NAME, 128, 1)                  \
  MLXRS_BATCH(NAME, T, NAME, 128, 8)
#define MLXRS_DENSE_BATCHES(NAME, T, ...) \
  MLXRS_BATCHES(NAME, T, __VA_ARGS__)     \
  MLXRS_BATCH(NAME, T, NAME, 32, 2)       \
  MLXRS_BATCH(NAME, T, NAME, 64, 2)
#define MLXRS_PERMUTE(PAIRS, ROWS)                                                                                   \
  extern "C" __global__ void __launch_bounds__(256) permute_##PAIRS##_##ROWS(const uint4* x, uint32_t* to, int m, int k) { \
    mlxrs::cuda::permute<mlxrs::cuda::Pairs::PAIRS, ROWS>(x, to, m, k);                                             \
  }
#define MLXRS_PERMUTES(PAIRS)  \
  MLXRS_PERMUTE(PAIRS, 32)     \
  MLXRS_PERMUTE(PAIRS, 64)     \
  MLXRS_PERMUTE(PAIRS, 128)
