// Attention of decode steps, as in attention.cu, for the usual case: rows with pages that bring few queries, heads of D
// elements, no chunks, slopes or masks. The arithmetic and the order of sums are those of attention.cu, so the bits are the
// same. It has a third of the instructions: a part that all queries see whole has no masks, and threads compute their
// addresses once.
//
// Grid: blockIdx.x is the KV head, blockIdx.y the range of parts, blockIdx.z the row. With more blocks than run at once, the
// longest rows come first (`sorts`): the last blocks to start end soon.
// Loads: while a part is computed, the keys and values of the next part are copied to shared memory.
// Bound: memory bandwidth. On an H100, 64 rows of 128 to 1,280 positions read 2.5 TB/s; loads alone are 4 % faster.
#include "cuda/args.h"
#include "cuda/device.cuh"
#include "ops/attention/cuda/parts.cuh"

namespace mlxrs::cuda {

// The row with `rank` longer rows, of at most attention_threads rows. `lens` is shared memory for as many numbers.
__device__ inline int row_of_rank(const AttentionArgs& a, int rank, int* lens) {
  __shared__ int found;
  // Rows of the same length differ by their number.
  int own = -1, row = static_cast<int>(threadIdx.x);
  if (row < a.rows) {
    own = __ldcg(a.offsets + row) * attention_threads + row;
  }
  lens[row] = own;
  __syncthreads();
  if (row < a.rows) {
    int longer = 0;
    for (int i = 0; i < a.rows; i += 4) {
      int4 four = *reinterpret_cast<const int4*>(lens + i);
      longer += (four.x > own) + (four.y > own) + (four.z > own) + (four.w > own);
    }
    if (longer == rank) {
      found = row;
    }
  }
  __syncthreads();
  return found;
}

template <class T, int D>
__device__ void decode(const AttentionArgs& a) {
  constexpr int stages = 2, padded = D + 8, of_half = part_slots * padded, of_stage = 2 * of_half;
  // The tiles of 8 elements of the values that a warp computes. With small heads some warps have none.
  constexpr int blocks = D / 32, value_tiles = D / attention_warps / 8 < 2 ? 2 : D / attention_warps / 8;
  // A thread copies 16 bytes of every `step`th slot.
  constexpr int step = attention_threads / (D / 8);
  extern __shared__ __align__(16) char memory_of_block[];
  T* buffer = reinterpret_cast<T*>(memory_of_block); // for each stage, keys and values
  __shared__ float scores[tile_queries][part_slots + 1];
  __shared__ __align__(16) T weights[tile_queries][weight_step];
  __shared__ float part_most[tile_queries], part_sum[tile_queries];

  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, g = lane / 4, t = lane % 4;
  int kv_head = blockIdx.x, row = blockIdx.z, group = a.by_group.by, own_value = warp * 8 * value_tiles;
  if (!a.early) {
    wait_for_previous();
  }
  if (a.sorts) {
    row = row_of_rank(a, row, reinterpret_cast<int*>(buffer));
  }
  RowTokens own(a, row);
  int offset = __ldcg(a.offsets + row), length = offset + own.count, queries = own.count * group;
  if (blockIdx.y == 0) {
    clear_rest<T>(a, row, 0, kv_head, D);
  }
  // The slots that queries see: those of the window of the first query up to that of the last query itself.
  int first_slot = a.window > 0 ? max(offset - a.window + 1, 0) : 0;
  int begin = first_slot / part_slots, end = (length + part_slots - 1) / part_slots, count = end - begin;
  int first_part = begin, sharing = 1;
  if (a.parts > 1) {
    int span = (count + a.parts - 1) / a.parts;
    sharing = span > 0 ? (count + span - 1) / span : 1;
    begin += static_cast<int>(blockIdx.y) * span, end = min(begin + span, end);
  }
  if (queries == 0 || begin >= end) {
    if (a.early) {
      wait_for_previous();
    }
    return;
  }
  // The parts that all queries see whole.
  int whole_begin = a.window > 0 ? (max(length - a.window, 0) + part_slots - 1) / part_slots : 0, whole_end = (offset + 1) / part_slots;

  const int32_t* table = a.flat.tables + static_cast<int64_t>(row) * a.flat.columns;
  auto page_of = [&](int c) { return __ldcg(table + (c < a.flat.columns ? c : c % a.flat.columns)); };
  int own_slot = static_cast<int>(threadIdx.x) / (D / 8), own_element = static_cast<int>(threadIdx.x) % (D / 8) * 8;
  const T* keys = static_cast<const T*>(a.k.at) + kv_head * a.k.head + own_slot * D + own_element;
  const T* values = static_cast<const T*>(a.v.at) + kv_head * a.v.head + own_slot * D + own_element;
  T* own_buffer = buffer + own_slot * padded + own_element;
  // Starts to copy the keys and values of a part.
  auto fetch = [&](int c, int page) {
    const T *key = keys + page * a.k_page, *value = values + page * a.v_page;
    T* to = own_buffer + (c - begin) % stages * of_stage;
#pragma unroll
    for (int i = 0; i < part_slots / step; i++) {
      copy_16_bytes(to + i * step * padded, key + i * step * D);
      copy_16_bytes(to + of_half + i * step * padded, value + i * step * D);
    }
  };
  // With `early`, a part whose positions are all before the step is read before the previous kernel has ended.
  int page = page_of(begin);
  bool is_old = a.early && (begin + 1) * part_slots <= offset;
  if (is_old) {
    fetch(begin, page);
  }
  if (a.early) {
    wait_for_previous();
  }
  if (!is_old) {
    fetch(begin, page);
  }
  page = begin + 1 < end ? page_of(begin + 1) : 0;

  // Queries as operands of the tensor cores: thread t has elements 8 t to 8 t + 7 of each 32.
  uint32_t q[blocks][2][4];
  int position[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int query = g + 8 * h, token = a.by_group.quotient(query), head = kv_head * group + query - token * group;
    const T* from = static_cast<const T*>(a.q.at) + head * a.q.head + (own.first + token) * a.q.token;
    position[h] = offset + token;
#pragma unroll
    for (int b = 0; b < blocks; b++) {
      uint4 v = {};
      if (query < queries) {
        v = *reinterpret_cast<const uint4*>(from + 32 * b + 8 * t);
      }
      q[b][h][0] = v.x, q[b][h][1] = v.y, q[b][h][2] = v.z, q[b][h][3] = v.w;
    }
  }
  // Whether there are queries in the second half of the tile.
  bool has_second = queries > 8;

  // The result of a part, in scratch memory: the values (D), the largest score and the sum of each query.
  int of_part = a.kept * (D + 2), most_parts = (a.slots + part_slots - 1) / part_slots;
  int64_t index = static_cast<int64_t>(row) * gridDim.x + kv_head;
  float* memory = a.partial + index * most_parts * of_part;
  bool is_split = sharing > 1;

  float y[value_tiles][4] = {}, most[2] = {nothing, nothing}, sum[2] = {0, 0};
  for (int c = begin; c < end; c++) {
    T *part_keys = buffer + (c - begin) % stages * of_stage, *part_values = part_keys + of_half;
    int slot = c * part_slots;
    asm volatile("cp.async.wait_all;");
    // All threads have their copies, and have read the part before this one.
    __syncthreads();
    if (c + 1 < end) {
      fetch(c + 1, page);
      page = c + 2 < end ? page_of(c + 2) : 0;
    }
    bool is_whole = c >= whole_begin && c < whole_end;
    if (!is_whole) {
      // Slots that no query sees may have NaN, and 0 times NaN is NaN, so they are read as zeros.
      for (int j = own_slot; j < part_slots; j += step) {
        if (slot + j < first_slot || slot + j >= length) {
          *reinterpret_cast<uint4*>(part_values + j * padded + own_element) = make_uint4(0, 0, 0, 0);
        }
      }
    }

    // The scores of the warp's 8 slots. Two accumulators have half of the elements each.
    float s[2][4] = {};
    const T* key = part_keys + (warp * 8 + g) * padded + 8 * t;
#pragma unroll
    for (int b = 0; b < blocks; b++) {
      uint4 k = *reinterpret_cast<const uint4*>(key + 32 * b);
      multiply<T>(s[b % 2], {q[b][0][0], q[b][1][0], q[b][0][1], q[b][1][1]}, k.x, k.y);
      multiply<T>(s[b % 2], {q[b][0][2], q[b][1][2], q[b][0][3], q[b][1][3]}, k.z, k.w);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (h == 1 && !has_second) {
        break;
      }
#pragma unroll
      for (int e = 0; e < 2; e++) {
        int at = warp * 8 + 2 * t + e, key = slot + at;
        float score = (s[0][2 * h + e] + s[1][2 * h + e]) * a.scale;
        if (a.cap > 0) {
          score = a.cap * tanhf(score / a.cap);
        }
        bool is_seen = is_whole || (key <= position[h] && (a.window <= 0 || key > position[h] - a.window));
        scores[g + 8 * h][at] = is_seen ? score : nothing;
      }
    }
    __syncthreads();
    for (int query = warp; query < queries; query += attention_warps) {
      weigh(scores[query], weights[query], part_most[query], part_sum[query]);
    }
    __syncthreads();

    float now[value_tiles][4] = {};
    // Steps of 16 slots of which no query sees one are left out. They would add zeros.
    int first_step = max(first_slot - slot, 0) / 16, steps = min((length - slot + 15) / 16, part_slots / 16);
    if (own_value < D) {
      add_weighted<padded>(now, weights[0], part_values + own_value, first_step, steps);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int query = g + 8 * h;
      if (query >= queries) {
        break;
      }
      if (is_split) {
        float* to = memory + (c - first_part) * of_part;
#pragma unroll
        for (int n = 0; n < value_tiles; n++) {
          int d = own_value + 8 * n + 2 * t;
          if (d < D) {
            *reinterpret_cast<float2*>(to + query * D + d) = make_float2(now[n][2 * h], now[n][2 * h + 1]);
          }
        }
        if (warp == 0 && t == 0) {
          to[a.kept * D + query] = part_most[query];
          to[a.kept * (D + 1) + query] = part_sum[query];
        }
        continue;
      }
      float of_part_most = part_most[query], larger = fmaxf(most[h], of_part_most);
      float old = weight_of(most[h], larger), fresh = weight_of(of_part_most, larger);
      sum[h] = joined(sum[h], old, part_sum[query], fresh);
#pragma unroll
      for (int n = 0; n < value_tiles; n++) {
        y[n][2 * h] = joined(y[n][2 * h], old, now[n][2 * h], fresh);
        y[n][2 * h + 1] = joined(y[n][2 * h + 1], old, now[n][2 * h + 1], fresh);
      }
      most[h] = larger;
    }
  }

  auto head_of = [&](int query) { return kv_head * group + query - a.by_group.quotient(query) * group; };
  auto result = [&](int query, int d) {
    return static_cast<T*>(a.y) + ((static_cast<int64_t>(own.first) + a.by_group.quotient(query)) * a.heads + head_of(query)) * D + d;
  };
  if (!is_split) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int query = g + 8 * h;
      if (query >= queries) {
        break;
      }
      float factor = factor_of(a.sinks, head_of(query), most[h], sum[h]);
#pragma unroll
      for (int n = 0; n < value_tiles; n++) {
        int d = own_value + 8 * n + 2 * t;
        if (d < D) {
          *reinterpret_cast<uint32_t*>(result(query, d)) = pair<T>(y[n][2 * h] * factor, y[n][2 * h + 1] * factor);
        }
      }
    }
    return;
  }
  if (!is_last_block(a.tickets + index, sharing)) {
    return;
  }
  static_assert(merge_bytes <= stages * of_stage * sizeof(T));
  merge_parts<D>(
      count, queries, a.kept, reinterpret_cast<float*>(buffer), part_sum,
      [&](int c, int at) { return __ldcg(reinterpret_cast<const float4*>(memory + c * of_part + at)); },
      [&](int query, float most, float sum) { return factor_of(a.sinks, head_of(query), most, sum); },
      [&](int query, int d, float4 y) { *reinterpret_cast<uint2*>(result(query, d)) = {pair<T>(y.x, y.y), pair<T>(y.z, y.w)}; });
}

} // namespace mlxrs::cuda

#define MLXRS_DECODE(T, D)                                                                                    \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::attention_threads, 2) decode_##T##_##D(           \
      const __grid_constant__ mlxrs::cuda::AttentionArgs a) {                                                 \
    mlxrs::cuda::decode<mlxrs::cuda::T, D>(a);                                                                \
  }
MLXRS_DECODE(bf16, 64)
MLXRS_DECODE(bf16, 128)
MLXRS_DECODE(f16, 64)
MLXRS_DECODE(f16, 128)
