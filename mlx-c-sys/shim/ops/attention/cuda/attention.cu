// y = softmax(cap(scale q k^T) + mask) v over a KV cache, for any number of queries; T is bf16 or f16, heads have up to
// 256 elements. Scores, sums and merged values are in F32; weights are rounded to T.
//
// Blocks: a block of 8 warps computes 16 queries that share a KV head (the query heads of a group, of one or several
// tokens). Keys are divided into parts of 64 slots. For a part, each warp computes the scores of 8 slots, then the
// softmax of 2 queries, then its elements of the weighted values.
// Grid: blockIdx.x is the tile of queries and the KV head, blockIdx.y the range of parts, blockIdx.z the row. The a.parts
// ranges of a row have equally many parts, as far as that is possible; only the last may have fewer, or be empty.
// Order of sums: each part has its own largest score, sum and weighted values, and parts are merged from the first to
// the last. Either one block goes through all parts, or several blocks have some parts each, and one of them merges all: on
// Hopper the blocks of up to 8 parts are a cluster, in which it reads the shared memory of the others; else the last block to
// end reads what each block wrote to memory for each of its parts. The arithmetic is the same. So the result of a query
// depends only on its keys, to the bit, and not on other rows, other queries or the number of blocks.
// Loads: while a part is computed, the keys and values of the next part are on their way to registers and shared memory. For
// heads of more than 128 elements there is no room for them, so they are on their way to L2.
// Bound: with many keys, memory bandwidth. With few, the latency of dependent instructions, in few blocks of few warps.
#include "cuda/args.h"
#include "cuda/cluster.cuh"
#include "cuda/device.cuh"
#include "cuda/key_mask.h"
#include "ops/attention/cuda/parts.cuh"

namespace mlxrs::cuda {

// For heads of at most D elements, a multiple of 8.
template <class T, int D, int Blocks>
__device__ void attention(const AttentionArgs& a, int dim, int value_dim) {
  // The tiles of 8 elements of the values that a warp computes. With small heads some warps have none.
  constexpr int blocks = D / 32, padded = D + 8, value_tiles = D / attention_warps / 8 < 2 ? 2 : D / attention_warps / 8;
  // Whether a part is loaded while the part before it is computed.
  constexpr bool is_ahead = D <= 128;
  __shared__ __align__(16) T values[(is_ahead ? 2 : 1) * part_slots * padded];
  __shared__ float scores[tile_queries][part_slots + 1];
  __shared__ __align__(16) T weights[tile_queries][weight_step];
  __shared__ float part_most[tile_queries], part_sum[tile_queries];

  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, g = lane / 4, t = lane % 4;
  int tile = a.by_kv_heads.quotient(blockIdx.x), kv_head = blockIdx.x - tile * a.kv_heads, row = blockIdx.z;
  int group = a.by_group.by, first = tile * tile_queries, own_value = warp * 8 * value_tiles;
  Slots<T> keys(a, a.k, a.k_page, row, kv_head), all_values(a, a.v, a.v_page, row, kv_head);
  // The number of parts that a row can have. If there are as many ranges, each has one part.
  int most_parts = (a.slots + part_slots - 1) / part_slots;
  bool is_one_part = a.parts > 1 && a.parts == most_parts;
  if (is_one_part && threadIdx.x < 2 && a.flat.starts == nullptr) {
    // Loads the part's keys and values to L2. Kernels that still write some of them write to L2 as well.
    bool is_key = threadIdx.x == 0;
    int slot = blockIdx.y * part_slots, last = min(part_slots, a.slots - slot) - 1;
    int64_t token = is_key ? a.k.token : a.v.token;
    prefetch((is_key ? keys : all_values).part(blockIdx.y), (last * token + (is_key ? dim : value_dim)) * sizeof(T));
  }
  // With `early`, the slots of positions before `offset` are read before the previous kernel has ended.
  if (!a.early) {
    wait_for_previous();
  }
  // Without a window or chunks the first part of these blocks is known before the lengths are.
  bool is_known = a.window <= 0 && a.chunk <= 0 && (is_one_part || blockIdx.y == 0);
  int page = is_known ? keys.page_of(blockIdx.y) : 0;
  RowTokens own(a, row);
  int queries = own.count * group;
  keys.begin_at(a, own), all_values.begin_at(a, own);
  KeyMask seen = mask_of(a, row, own.count);
  int offset = seen.offset;
  if (a.flat.starts != nullptr) {
    if (blockIdx.y == 0) {
      clear_rest<T>(a, row, tile, kv_head, value_dim);
    }
    if (first >= queries) {
      if (a.early) {
        wait_for_previous();
      }
      return;
    }
  }

  // The parts of the keys that the queries of this tile can see.
  int last_query = min(first + tile_queries, queries) - 1;
  Range range = seen.range(a.by_group.quotient(first), a.by_group.quotient(last_query));
  int begin = range.first / part_slots, end = max(begin + 1, (range.end + part_slots - 1) / part_slots), count = end - begin;
  // The parts of this block, and the number of blocks that have parts of this tile.
  int first_part = begin, sharing = 1;
  if (a.parts > 1) {
    int span = (count + a.parts - 1) / a.parts;
    sharing = (count + span - 1) / span;
    begin += blockIdx.y * span, end = min(begin + span, end);
    if (begin >= end && (!a.is_cluster || sharing == 1)) {
      if (a.early) {
        wait_for_previous();
      }
      return;
    }
  }
  if (!is_known || begin != blockIdx.y) {
    page = begin < end ? keys.page_of(begin) : 0;
  }
  bool is_split = sharing > 1 && !a.is_cluster;
  // Steps of 16 slots of which no query sees one are left out. They would add zeros.
  auto first_step_of = [&](int slot) { return max(range.first - slot, 0) / 16; };
  auto steps_of = [&](int slot) { return min((range.end - slot + 15) / 16, part_slots / 16); };

  auto values_of = [&](int c) { return values + (is_ahead ? (c - begin) % 2 * part_slots * padded : 0); };
  // Starts to copy the values of a part to shared memory, for the slots that `wanted` names.
  auto fetch_values = [&](int c, int page, const auto& wanted) {
    int slot = c * part_slots, first_step = first_step_of(slot), steps = steps_of(slot);
    const T* from = all_values.in_page(page);
#pragma unroll
    for (int i = threadIdx.x; i < part_slots * (D / 8); i += attention_threads) {
      int j = i / (D / 8), d = i % (D / 8) * 8;
      if (j < 16 * first_step || j >= 16 * steps || !wanted(slot + j)) {
        continue;
      }
      T* to = values_of(c) + j * padded + d;
      // Slots that no query sees may have NaN, and 0 times NaN is NaN, so they are read as zeros.
      if (slot + j >= range.first && slot + j < range.end && d < value_dim) {
        copy_16_bytes(to, from + j * a.v.token + d);
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      }
    }
  };
  // Reads the key of the thread's slot of a part: elements 8 t to 8 t + 7 of each 32. Bypasses L1, which may have bytes from
  // before the previous kernel has ended.
  uint4 own_key[blocks];
  auto load_key = [&](int c, int page) {
    int own_slot = warp * 8 + g;
    const T* from = keys.in_page(page) + own_slot * a.k.token;
#pragma unroll
    for (int b = 0; b < blocks; b++) {
      own_key[b] = {};
      if (c * part_slots + own_slot < seen.slots && 32 * b + 8 * t < dim) {
        own_key[b] = __ldcg(reinterpret_cast<const uint4*>(from + 32 * b + 8 * t));
      }
    }
  };
  // Keys of the first part stay in registers while the queries are read, where there are enough registers.
  constexpr bool has_key_ahead = D < 256 || Blocks == 1;
  auto is_new = [&](int slot) { return seen.key(slot) >= offset; };
  auto is_old = [&](int slot) { return !is_new(slot); };
  if (a.early) {
    if (begin < end) {
      fetch_values(begin, page, is_old);
      if (has_key_ahead) {
        load_key(begin, page);
      }
    }
    wait_for_previous();
    if (begin < end) {
      fetch_values(begin, page, is_new);
      if (has_key_ahead && is_new(begin * part_slots + warp * 8 + g)) {
        load_key(begin, page);
      }
    }
  } else if (is_ahead && begin < end) {
    fetch_values(begin, page, [](int) { return true; });
    load_key(begin, page);
  }
  if (is_ahead) {
    asm volatile("cp.async.commit_group;");
  }

  // Queries as operands of the tensor cores: thread t has elements 8 t to 8 t + 7 of each 32.
  uint32_t q[blocks][2][4];
  int position[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int query = first + g + 8 * h, token = a.by_group.quotient(query), head = kv_head * group + query - token * group;
    const T* from = static_cast<const T*>(a.q.at) + (a.flat.starts != nullptr ? 0 : row * a.q.row) + head * a.q.head + (own.first + token) * a.q.token;
    position[h] = query < queries ? offset + token : KeyMask::nowhere;
#pragma unroll
    for (int b = 0; b < blocks; b++) {
      uint4 v = {};
      if (query < queries && 32 * b + 8 * t < dim) {
        v = *reinterpret_cast<const uint4*>(from + 32 * b + 8 * t);
      }
      q[b][h][0] = v.x, q[b][h][1] = v.y, q[b][h][2] = v.z, q[b][h][3] = v.w;
    }
  }

  // The result of a part: the values (D), the largest score and the sum of each query. It is in the shared memory of the
  // part's block in a cluster, else in scratch memory.
  int of_part = a.kept * (D + 2), of_scores = a.kept * D;
  static_assert((tile_queries * (D + 2) + cluster_blocks * 2 * tile_queries) * sizeof(float) <= sizeof(values));
  int64_t index = static_cast<int64_t>(row) * gridDim.x + blockIdx.x;
  float* memory = a.partial + index * most_parts * of_part;
  auto keep = [&](float* to, const float (&values)[value_tiles][4], int h, float most, float sum) {
    if (first + g + 8 * h >= queries) {
      return;
    }
#pragma unroll
    for (int n = 0; n < value_tiles; n++) {
      int d = own_value + 8 * n + 2 * t;
      if (d < D) {
        *reinterpret_cast<float2*>(to + (g + 8 * h) * D + d) = make_float2(values[n][2 * h], values[n][2 * h + 1]);
      }
    }
    if (warp == 0 && t == 0) {
      to[of_scores + g + 8 * h] = most;
      to[of_scores + a.kept + g + 8 * h] = sum;
    }
  };

  float y[value_tiles][4] = {}, most[2] = {nothing, nothing}, sum[2] = {0, 0};

  for (int c = begin; c < end; c++) {
    int slot = c * part_slots, first_step = first_step_of(slot), steps = steps_of(slot), own_slot = warp * 8;
    bool is_loaded = is_ahead || (a.early && c == begin), has_next = c + 1 < end;
    int next_page = has_next ? keys.page_of(c + 1) : 0;
    if (!is_loaded) {
      __syncthreads();
      fetch_values(c, page, [](int) { return true; });
    }
    if (!is_ahead) {
      asm volatile("cp.async.commit_group;");
      if (has_next && threadIdx.x < 2 && a.k.token == dim && a.v.token == value_dim) {
        bool is_key = threadIdx.x == 0;
        int count = min(range.end - slot - part_slots, part_slots);
        prefetch((is_key ? keys : all_values).in_page(next_page), count * (is_key ? dim : value_dim) * sizeof(T));
      }
    }

    // The scores of the warp's 8 slots. Two accumulators have half of the elements each.
    float s[2][4] = {};
    if (warp >= 2 * first_step && warp < 2 * steps) {
      if (!has_key_ahead || !is_loaded) {
        load_key(c, page);
      }
#pragma unroll
      for (int b = 0; b < blocks; b++) {
        multiply<T>(s[b % 2], {q[b][0][0], q[b][1][0], q[b][0][1], q[b][1][1]}, own_key[b].x, own_key[b].y);
        multiply<T>(s[b % 2], {q[b][0][2], q[b][1][2], q[b][0][3], q[b][1][3]}, own_key[b].z, own_key[b].w);
      }
    }
    if (is_ahead && has_next) {
      load_key(c + 1, next_page);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      int at = own_slot + 2 * t + e, key = seen.key(slot + at);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float score = (s[0][2 * h + e] + s[1][2 * h + e]) * a.scale;
        if (a.cap > 0) {
          score = a.cap * tanhf(score / a.cap);
        }
        bool is_seen = seen.sees(position[h], key);
        if (a.adds && is_seen) {
          int query = first + g + 8 * h, token = a.by_group.quotient(query);
          score = added_to(a, score, kv_head * group + query - token * group, own.first + token, position[h], key);
        }
        scores[g + 8 * h][at] = is_seen ? score : nothing;
      }
    }
    __syncthreads();
    if (is_ahead) {
      // All warps have read the values of the part before this one.
      if (has_next) {
        fetch_values(c + 1, next_page, [](int) { return true; });
      }
      asm volatile("cp.async.commit_group;");
    }
    page = next_page;
#pragma unroll
    for (int i = 0; i < tile_queries / attention_warps; i++) {
      int query = warp + i * attention_warps;
      if (first + query >= queries) {
        break;
      }
      weigh(scores[query], weights[query], part_most[query], part_sum[query]);
    }
    if (is_ahead) {
      asm volatile("cp.async.wait_group 1;");
    } else {
      asm volatile("cp.async.wait_all;");
    }
    __syncthreads();

    const T* own_values = values_of(c);
    float now[value_tiles][4] = {};
    if (own_value < D) {
      add_weighted<padded>(now, weights[0], own_values + own_value, first_step, steps);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (is_split) {
        keep(memory + (c - first_part) * of_part, now, h, part_most[g + 8 * h], part_sum[g + 8 * h]);
        continue;
      }
      float of_part = part_most[g + 8 * h], larger = fmaxf(most[h], of_part);
      float old = weight_of(most[h], larger), fresh = weight_of(of_part, larger);
      sum[h] = joined(sum[h], old, part_sum[g + 8 * h], fresh);
#pragma unroll
      for (int n = 0; n < value_tiles; n++) {
        y[n][2 * h] = joined(y[n][2 * h], old, now[n][2 * h], fresh);
        y[n][2 * h + 1] = joined(y[n][2 * h + 1], old, now[n][2 * h + 1], fresh);
      }
      most[h] = larger;
    }
  }

  // The factor that turns a query's merged values into its result.
  auto last_factor = [&](int query, float most, float sum) {
    return factor_of(a.sinks, kv_head * group + query - a.by_group.quotient(query) * group, most, sum);
  };
  auto result = [&](int query, int d) {
    int token = a.by_group.quotient(query), head = kv_head * group + query - token * group;
    int64_t of_row = a.flat.starts != nullptr ? own.first : static_cast<int64_t>(row) * a.tokens;
    return static_cast<T*>(a.y) + ((of_row + token) * a.heads + head) * value_dim + d;
  };

  if (sharing == 1) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int query = first + g + 8 * h;
      if (query >= queries) {
        continue;
      }
      float factor = last_factor(query, most[h], sum[h]);
#pragma unroll
      for (int n = 0; n < value_tiles; n++) {
        int d = own_value + 8 * n + 2 * t;
        if (d < value_dim) {
          *reinterpret_cast<uint32_t*>(result(query, d)) = pair<T>(y[n][2 * h] * factor, y[n][2 * h + 1] * factor);
        }
      }
    }
    return;
  }

  float* mine = reinterpret_cast<float*>(values);
  if (a.is_cluster) {
    // All warps have read the values.
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      keep(mine, y, h, most[h], sum[h]);
    }
  }
  bool is_last = blockIdx.y == 0;
  if (a.is_cluster) {
    wait_for_cluster();
  } else {
    is_last = is_last_block(a.tickets + index, sharing);
  }
  if (!is_last) {
    if (a.is_cluster) {
      // Its shared memory is read until the merge has ended.
      wait_for_cluster();
    }
    return;
  }
  static_assert(merge_bytes <= sizeof(values));
  float* factors = reinterpret_cast<float*>(values) + (a.is_cluster ? of_part : 0);
  merge_parts<D>(
      count, min(tile_queries, queries - first), a.kept, factors, part_sum,
      [&](int c, int at) {
        return a.is_cluster ? of_block(reinterpret_cast<const float4*>(mine + at), c)
                            : __ldcg(reinterpret_cast<const float4*>(memory + c * of_part + at));
      },
      [&](int query, float most, float sum) { return last_factor(first + query, most, sum); },
      [&](int query, int d, float4 y) {
        if (d < value_dim) {
          *reinterpret_cast<uint2*>(result(first + query, d)) = {pair<T>(y.x, y.y), pair<T>(y.z, y.w)};
        }
      });
  if (a.is_cluster) {
    // The other blocks may end.
    arrive_at_cluster();
  }
}

} // namespace mlxrs::cuda

// Large heads have two kernels: one that leaves room for two blocks on a multiprocessor, and a faster one for few
// blocks.
#define MLXRS_ATTENTION(NAME, T, D, BLOCKS)                                                                         \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::attention_threads, BLOCKS)                              \
      attention_##NAME(const __grid_constant__ mlxrs::cuda::AttentionArgs a, int dim, int value_dim) {              \
    mlxrs::cuda::attention<mlxrs::cuda::T, D, BLOCKS>(a, dim, value_dim);                                           \
  }
MLXRS_ATTENTION(bf16_64, bf16, 64, 2)
MLXRS_ATTENTION(bf16_128, bf16, 128, 2)
MLXRS_ATTENTION(bf16_256, bf16, 256, 2)
MLXRS_ATTENTION(bf16_256_few, bf16, 256, 1)
MLXRS_ATTENTION(f16_64, f16, 64, 2)
MLXRS_ATTENTION(f16_128, f16, 128, 2)
MLXRS_ATTENTION(f16_256, f16, 256, 2)
MLXRS_ATTENTION(f16_256_few, f16, 256, 1)
