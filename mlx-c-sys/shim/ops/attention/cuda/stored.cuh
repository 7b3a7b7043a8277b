// Attention, as in attention.cu, for packed keys and values (ops/store) and for heads of more than 256 elements.
//
// Blocks: a block computes 16 queries that share a KV head (the query heads of a group, of one or several tokens). Keys
// are divided into parts of 64 slots. A thread unpacks eight elements of a key or value as it loads them. Queries and a
// part's values are in shared memory; keys go directly to registers.
// Grid: blockIdx.x is the tile of queries, or the tile and the part of the keys; blockIdx.y the KV head, blockIdx.z the
// row. If parts have blocks of their own, the kernel `join_parts` merges them.
// Order of sums: each part has its own weighted values, largest score and sum. Parts are merged from the first to the
// last, by one block or by `join_parts`, with the same operations. So a query's result depends only on its keys, to the
// bit.
// Bound: in decode, memory bandwidth for the KV cache, and with few rows latency; in prompts, unpacking, which each
// tile of queries repeats.
#pragma once

#include "cuda/args.h"
#include "cuda/codes.cuh"
#include "cuda/key_mask.h"
#include "ops/attention/cuda/parts.cuh"
#include "ops/attention/cuda/stored.h"

namespace mlxrs::cuda {

// Keys or values that are not packed.
template <class T>
struct Plain {
  static constexpr Pairs pairs = Pairs::adjacent;
  Slots<T> slots;

  __device__ Plain(const AttentionArgs& a, const Heads& of, int64_t page, int row, int head, int, int) : slots(a, of, page, row, head) {}
  // Loads elements d to d + 7 of a slot, in the order of `pairs`.
  __device__ void eight(int slot, int d, uint32_t (&y)[4]) const {
    arrange<pairs>(*reinterpret_cast<const uint4*>(slots.part(slot / part_slots) + slot % part_slots * slots.token + d), y);
  }
};

// Packed keys or values: codes, followed by the scale and the bias of each group (mlxrs_fast_pack).
template <class T, int Bits>
struct Packed {
  static constexpr Pairs pairs = Affine<T, Bits>::pairs;
  Slots<uint32_t> slots;
  int codes, group;

  __device__ Packed(const AttentionArgs& a, const Heads& of, int64_t page, int row, int head, int dim, int group)
      : slots(a, of, page, row, head), codes(dim * Bits / 32), group(group) {}
  __device__ void eight(int slot, int d, uint32_t (&y)[4]) const {
    const uint32_t* vector = slots.part(slot / part_slots) + slot % part_slots * slots.token;
    Affine<T, Bits> some;
#pragma unroll
    for (int i = 0; i < Bits / 4; i++) {
      some.words[i] = vector[d * Bits / 32 + i];
    }
    // Affine keeps the raw bits of scale and bias.
    const uint16_t* factors = reinterpret_cast<const uint16_t*>(vector + codes + (d >> group));
    some.scale = factors[0], some.bias = factors[1];
    some.eight(0, y);
  }
};

// Brings eight elements from the order of the pairs back to memory order.
template <Pairs P>
__device__ inline uint4 restored(const uint32_t (&y)[4]) {
  if constexpr (P == Pairs::adjacent) {
    return make_uint4(y[0], y[1], y[2], y[3]);
  } else {
    return make_uint4(
        __byte_perm(y[0], y[1], 0x5410), __byte_perm(y[2], y[3], 0x5410), __byte_perm(y[0], y[1], 0x7632),
        __byte_perm(y[2], y[3], 0x7632));
  }
}

// A tile of queries of one row that share a KV head.
struct Tile {
  int row, kv_head, group, queries, first; // number of the first query
  KeyMask seen;
  Range range; // the slots that its queries can see
  int begin, end; // the parts with these slots
  RowTokens own;
  int first_of_blocks; // the part of the first block; those of a flat step have the parts from `begin` on

  __device__ Tile(const AttentionArgs& a, int tile, int kv_head, int row)
      : row(row), kv_head(kv_head), group(a.heads / a.kv_heads), first(tile * stored_queries), own(a, row) {
    queries = own.count * group;
    seen = mask_of(a, row, own.count);
    range = seen.range(first / group, (min(first + stored_queries, queries) - 1) / group);
    begin = range.first / stored_slots;
    end = max(begin + 1, (range.end + stored_slots - 1) / stored_slots);
    first_of_blocks = a.flat.starts != nullptr ? begin : 0;
  }
  // Whether the row brings none of the tile's queries.
  __device__ bool is_empty() const {
    return first >= queries;
  }
  __device__ int head(int query) const {
    return kv_head * group + query % group;
  }
  // The factor that turns a query's merged values into its result.
  __device__ float factor(const AttentionArgs& a, int query, float most, float sum) const {
    if (a.sinks != nullptr) {
      // An attention sink is a score without a value.
      float sink = a.sinks[head(query)], larger = fmaxf(sink, most), old = weight_of(most, larger);
      sum = joined(sum, old, weight_of(sink, larger), 1.0f);
      return sum > 0 ? old / sum : 0.0f;
    }
    return sum > 0 ? 1.0f / sum : 0.0f;
  }
  template <class T>
  __device__ T* result(const AttentionArgs& a, int query, int value_dim) const {
    int64_t before = a.flat.starts != nullptr ? own.first : static_cast<int64_t>(row) * a.tokens;
    return static_cast<T*>(a.y) + ((before + query / group) * a.heads + head(query)) * value_dim;
  }
  // The scratch memory of the tile's parts.
  __device__ float* partial(const AttentionArgs& a, int tile, int tiles, int v) const {
    return a.partial + ((static_cast<int64_t>(row) * a.kv_heads + kv_head) * tiles + tile) * a.parts * stored_partial(v);
  }
};

// For keys of at most D and values of at most V elements.
template <class T, int D, int V, int Warps, class Kept>
__device__ void attend(const AttentionArgs& a, const StoredHeads& of) {
  constexpr int threads = Warps * warp_size, own_slots = stored_slots / Warps, own_queries = stored_queries / Warps;
  static_assert(stored_slots == part_slots);
  constexpr int q_step = D + 8, v_step = V + 8, s_step = stored_slots + 1, value_tiles = V / Warps / 8;
  extern __shared__ __align__(16) char memory[];
  T* queries = reinterpret_cast<T*>(memory);
  T* values = queries + stored_queries * q_step;
  T* weights = values + stored_slots * v_step;
  float* scores = reinterpret_cast<float*>(weights + stored_queries * weight_step);
  float *part_most = scores + stored_queries * s_step, *part_sum = part_most + stored_queries;
  wait_for_previous();

  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, g = lane / 4, t = lane % 4;
  int part = blockIdx.x % a.parts;
  Tile tile(a, blockIdx.x / a.parts, blockIdx.y, blockIdx.z);
  if (part == 0) {
    clear_rest<T>(a, blockIdx.z, blockIdx.x / a.parts, blockIdx.y, of.value_dim);
  }
  if (tile.is_empty()) {
    return;
  }
  part += tile.first_of_blocks;
  int begin = tile.begin, end = tile.end;
  if (a.parts > 1) {
    if (part < begin || part >= end) {
      return;
    }
    begin = part, end = part + 1;
  }
  for (int i = threadIdx.x; i < stored_queries * (D / 8); i += threads) {
    int own = i / (D / 8), d = i % (D / 8) * 8, query = tile.first + own;
    uint4 v = {};
    if (query < tile.queries && d < of.dim) {
      const T* from = static_cast<const T*>(a.q.at) + (a.flat.starts != nullptr ? 0 : tile.row * a.q.row) + tile.head(query) * a.q.head +
          (tile.own.first + query / tile.group) * a.q.token;
      v = *reinterpret_cast<const uint4*>(from + d);
    }
    uint32_t y[4];
    arrange<Kept::pairs>(v, y);
    *reinterpret_cast<uint4*>(queries + own * q_step + d) = make_uint4(y[0], y[1], y[2], y[3]);
  }
  Kept keys(a, a.k, a.k_page, tile.row, tile.kv_head, of.dim, of.group), all_values(a, a.v, a.v_page, tile.row, tile.kv_head, of.value_dim, of.group);
  keys.slots.begin_at(a, tile.own), all_values.slots.begin_at(a, tile.own);
  float y[value_tiles][4] = {}, most[2] = {nothing, nothing}, sum[2] = {0, 0};

  for (int c = begin; c < end; c++) {
    int slot = c * stored_slots;
    auto is_there = [&](int j) { return j >= tile.range.first && j < tile.range.end; };
    // The first barrier also waits for the queries in shared memory.
    __syncthreads();
    for (int i = threadIdx.x; i < stored_slots * (V / 8); i += threads) {
      int j = i / (V / 8), d = i % (V / 8) * 8;
      // Slots that no query sees may have NaN, and 0 times NaN is NaN, so they are read as zeros.
      uint32_t some[4] = {};
      if (is_there(slot + j) && d < of.value_dim) {
        all_values.eight(slot + j, d, some);
      }
      *reinterpret_cast<uint4*>(values + j * v_step + d) = restored<Kept::pairs>(some);
    }
    // The scores of the warp's slots.
#pragma unroll
    for (int n = 0; n < own_slots / 8; n++) {
      int own = warp * own_slots + n * 8, j = slot + own + g;
      float s[4] = {};
#pragma unroll
      for (int b = 0; b < D / 32; b++) {
        int d = 32 * b + 8 * t;
        uint32_t k[4] = {};
        if (is_there(j) && d < of.dim) {
          keys.eight(j, d, k);
        }
        uint4 upper = *reinterpret_cast<const uint4*>(queries + g * q_step + d);
        uint4 lower = *reinterpret_cast<const uint4*>(queries + (g + 8) * q_step + d);
        multiply<T>(s, {upper.x, lower.x, upper.y, lower.y}, k[0], k[1]);
        multiply<T>(s, {upper.z, lower.z, upper.w, lower.w}, k[2], k[3]);
      }
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int query = g + e / 2 * 8, at = own + 2 * t + e % 2;
        float score = s[e] * a.scale;
        if (a.cap > 0) {
          score = a.cap * tanhf(score / a.cap);
        }
        int token = (tile.first + query) / tile.group;
        bool is_seen = tile.first + query < tile.queries && tile.seen(token, slot + at);
        if (a.adds && is_seen) {
          score = added_to(
              a, score, tile.head(tile.first + query), tile.own.first + token, tile.seen.offset + token, tile.seen.key(slot + at));
        }
        scores[query * s_step + at] = is_seen ? score : nothing;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < own_queries; i++) {
      int query = warp * own_queries + i;
      weigh(scores + query * s_step, weights + query * weight_step, part_most[query], part_sum[query]);
    }
    __syncthreads();

    // Weighted values: each warp computes some of the elements.
    float own[value_tiles][4] = {};
    add_weighted<v_step>(own, weights, values + warp * (V / Warps), 0, stored_slots / 16);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float of_part = part_most[g + 8 * h], larger = fmaxf(most[h], of_part);
      float old = weight_of(most[h], larger), fresh = weight_of(of_part, larger);
      sum[h] = joined(sum[h], old, part_sum[g + 8 * h], fresh);
#pragma unroll
      for (int n = 0; n < value_tiles; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          y[n][2 * h + e] = joined(y[n][2 * h + e], old, own[n][2 * h + e], fresh);
        }
      }
      most[h] = larger;
    }
  }

  float* mine = a.parts > 1 ? tile.partial(a, blockIdx.x / a.parts, gridDim.x / a.parts, V) + (part - tile.first_of_blocks) * stored_partial(V) : nullptr;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int own = g + 8 * h, query = tile.first + own;
    float factor = mine == nullptr && query < tile.queries ? tile.factor(a, query, most[h], sum[h]) : 0.0f;
#pragma unroll
    for (int n = 0; n < value_tiles; n++) {
      int d = warp * (V / Warps) + 8 * n + 2 * t;
      if (mine != nullptr) {
        *reinterpret_cast<float2*>(mine + own * V + d) = make_float2(y[n][2 * h], y[n][2 * h + 1]);
      } else if (query < tile.queries && d < of.value_dim) {
        *reinterpret_cast<uint32_t*>(tile.result<T>(a, query, of.value_dim) + d) = pair<T>(y[n][2 * h] * factor, y[n][2 * h + 1] * factor);
      }
    }
    if (mine != nullptr && warp == 0 && t == 0) {
      mine[stored_queries * V + own] = most[h];
      mine[stored_queries * (V + 1) + own] = sum[h];
    }
  }
}

// Merges the parts of queries whose parts had blocks of their own. A thread merges four elements of a query, and each
// tile has V / 32 blocks in blockIdx.x.
template <class T, int V>
__device__ void join_parts(const AttentionArgs& a, const StoredHeads& of) {
  wait_for_previous();
  constexpr int blocks = V / 32;
  int task = blockIdx.x % blocks * blockDim.x + threadIdx.x, own = task / (V / 4), d = task % (V / 4) * 4;
  Tile tile(a, blockIdx.x / blocks, blockIdx.y, blockIdx.z);
  int query = tile.first + own;
  if (query >= tile.queries || d >= of.value_dim) {
    return;
  }
  const float* from = tile.partial(a, blockIdx.x / blocks, gridDim.x / blocks, V);
  float most = nothing, sum = 0;
  float4 y = {};
  for (int c = tile.begin; c < tile.end; c++) {
    const float* part = from + (c - tile.first_of_blocks) * stored_partial(V);
    float of_part = part[stored_queries * V + own], larger = fmaxf(most, of_part);
    float old = weight_of(most, larger), fresh = weight_of(of_part, larger);
    float4 more = *reinterpret_cast<const float4*>(part + own * V + d);
    sum = joined(sum, old, part[stored_queries * (V + 1) + own], fresh);
    y.x = joined(y.x, old, more.x, fresh);
    y.y = joined(y.y, old, more.y, fresh);
    y.z = joined(y.z, old, more.z, fresh);
    y.w = joined(y.w, old, more.w, fresh);
    most = larger;
  }
  float factor = tile.factor(a, query, most, sum);
  *reinterpret_cast<uint2*>(tile.result<T>(a, query, of.value_dim) + d) = {
      pair<T>(y.x * factor, y.y * factor), pair<T>(y.z * factor, y.w * factor)};
}

} // namespace mlxrs::cuda

#define MLXRS_STORED(NAME, T, D, V, WARPS, ...)                                                                       \
  extern "C" __global__ void __launch_bounds__(WARPS * mlxrs::cuda::warp_size) NAME##_##T##_##V(                     \
      const __grid_constant__ mlxrs::cuda::AttentionArgs a, const __grid_constant__ mlxrs::cuda::StoredHeads of) {    \
    using namespace mlxrs::cuda;                                                                                     \
    attend<T, D, V, WARPS, __VA_ARGS__>(a, of);                                                                      \
  }
#define MLXRS_JOIN(T, V)                                                                                              \
  extern "C" __global__ void __launch_bounds__(128) join_##T##_##V(                                                  \
      const __grid_constant__ mlxrs::cuda::AttentionArgs a, const __grid_constant__ mlxrs::cuda::StoredHeads of) {    \
    using namespace mlxrs::cuda;                                                                                     \
    join_parts<T, V>(a, of);                                                                                         \
  }
