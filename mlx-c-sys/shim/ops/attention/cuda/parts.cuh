// Device code that the attention kernels share: sizes of tiles and parts, weights of scores, merging of parts, and products
// of weights and values.
#pragma once

#include "cuda/args.h"
#include "cuda/device.cuh"
#include "cuda/key_mask.h"

namespace mlxrs::cuda {

// A row of weights in shared memory has `weight_step` elements, so that the threads that read together hit all banks.
constexpr int tile_queries = 16, part_slots = 64, weight_step = part_slots + 8;
// The threads of a block of attention.cu and decode.cu.
constexpr int attention_warps = 8, attention_threads = attention_warps * warp_size;
constexpr float nothing = -INFINITY;

// The tokens of a row of a step.
struct RowTokens {
  int first, count; // `first` counts from the first token of q

  __device__ RowTokens(const AttentionArgs& a, int row) : first(0), count(a.tokens) {
    if (a.flat.starts != nullptr) {
      first = __ldcg(a.flat.starts + row);
      count = __ldcg(a.flat.starts + row + 1) - first;
    }
  }
};
// Writes the zeros of the tokens that belong to no row: the block of the last row with `tile` 0, for the query heads of a
// KV head. It waits for the previous kernel, which may still read the memory of the result.
template <class T>
__device__ inline void clear_rest(const AttentionArgs& a, int row, int tile, int kv_head, int value_dim) {
  if (a.flat.starts == nullptr || row != a.rows - 1 || tile != 0) {
    return;
  }
  int group = a.heads / a.kv_heads, from = __ldcg(a.flat.starts + a.rows), of_token = group * value_dim;
  if (from >= a.tokens_of_all) {
    return;
  }
  wait_for_previous();
  T* y = static_cast<T*>(a.y);
  for (int64_t i = threadIdx.x; i < static_cast<int64_t>(a.tokens_of_all - from) * of_token; i += blockDim.x) {
    int64_t token = from + i / of_token;
    y[(token * a.heads + kv_head * group) * value_dim + i % of_token] = narrow<T>(0.0f);
  }
}

// The lowest number, which stands for a key that a mask hides. The weights of a query from which all keys are hidden are equal.
constexpr float hidden = -3.402823466e+38f;

// The score of a query of head `head` at position `position`, token `token` of the step, and the key at position `key`, with
// what slopes and a mask add to it.
__device__ inline float added_to(const AttentionArgs& a, float score, int head, int token, int position, int key) {
  if (a.slopes != nullptr) {
    score = __fmaf_rn(a.slopes[head], static_cast<float>(key - position), score);
  }
  if (a.added != nullptr) {
    int64_t at = head * a.added_head + token * a.added_token + key * a.added_column;
    bool is_column = key < a.added_columns;
    if (a.added_is_bool) {
      score = is_column && static_cast<const bool*>(a.added)[at] ? score : hidden;
    } else if (is_column) {
      score += static_cast<const float*>(a.added)[at];
    }
  }
  return score;
}

// What the queries of a row see. A query that sees `ahead` positions after its own has the mask of the query at the last of
// them, for the keys that there are.
__device__ inline KeyMask mask_of(const AttentionArgs& a, int row, int tokens) {
  bool is_flat = a.flat.starts != nullptr;
  int offset = a.offsets != nullptr ? __ldcg(a.offsets + row * a.offset_step) : is_flat ? 0 : a.slots - tokens;
  return {a.mask, a.layout, a.window, offset + a.ahead, tokens, is_flat ? offset + tokens : a.slots, a.chunk};
}

// The keys or values of a row and a KV head in slots of 64: one array, or pages.
template <class T>
struct Slots {
  const T* at;
  int64_t token, page; // strides of a slot and of 64 slots, or of a page
  const int32_t* table; // null for an array
  int columns;

  __device__ Slots(const AttentionArgs& a, const Heads& of, int64_t page, int row, int kv_head)
      : at(static_cast<const T*>(of.at) + (a.flat.starts != nullptr ? 0 : row * of.row) + kv_head * of.head), token(of.token),
        page(a.flat.tables != nullptr ? page : part_slots * of.token),
        table(a.flat.tables != nullptr ? a.flat.tables + static_cast<int64_t>(row) * a.flat.columns : nullptr),
        columns(a.flat.columns) {}
  // Begins at the row's first token, in a flat step without pages.
  __device__ void begin_at(const AttentionArgs& a, const RowTokens& own) {
    if (a.flat.starts != nullptr && table == nullptr) {
      at += own.first * token;
    }
  }
  // The number of the page of a part, or of the part in an array.
  __device__ int page_of(int c) const {
    return table == nullptr ? c : __ldcg(table + c % columns);
  }
  // The first slot of a page.
  __device__ const T* in_page(int number) const {
    return at + number * page;
  }
  // The first of the 64 slots of a part.
  __device__ const T* part(int c) const {
    return in_page(page_of(c));
  }
};

// e^(x - most), or 0 if x is `nothing`.
__device__ inline float weight_of(float x, float most) {
  return x == nothing ? 0.0f : __expf(x - most);
}
// x * of_x + y * of_y. All merges of two parts use this function, because the compiler may round such a sum in
// different ways in different places.
__device__ inline float joined(float x, float of_x, float y, float of_y) {
  return __fmaf_rn(x, of_x, __fmul_rn(y, of_y));
}

// The factor that turns a query's merged values into its result. An attention sink is a score without a value.
__device__ inline float factor_of(const float* sinks, int head, float most, float sum) {
  if (sinks != nullptr) {
    float sink = sinks[head], larger = fmaxf(sink, most), old = weight_of(most, larger);
    sum = joined(sum, old, weight_of(sink, larger), 1.0f);
    return sum > 0 ? old / sum : 0.0f;
  }
  return sum > 0 ? 1.0f / sum : 0.0f;
}

// Whether this block is the last of `sharing` blocks with a counter that ends. What the others wrote before is visible then.
__device__ inline bool is_last_block(uint32_t* ticket, int sharing) {
  __shared__ bool is_last;
  // The atomic orders the writes of the blocks. The barrier orders the writes of the other threads of this block before
  // it.
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(ticket) : "memory");
    is_last = before == static_cast<uint32_t>(sharing - 1);
    if (is_last) {
      *ticket = 0;
    }
  }
  __syncthreads();
  return is_last;
}

// The parts that a block merges at a time, and the bytes of shared memory for their factors.
constexpr int merged_parts = 64, merge_bytes = merged_parts * 2 * tile_queries * static_cast<int>(sizeof(float));

// Merges `count` parts of `some` queries, from the first to the last. A part has the values (D for each of `kept` queries),
// the largest scores and the sums; `load(part, at)` reads four numbers of it. `factors` has merge_bytes, and
// `of_query` a number for each query. `factor` turns merged values into a result, and `write` takes four numbers of it. All
// threads of a block of attention_threads call it.
template <int D, class Load, class Factor, class Write>
__device__ inline void merge_parts(
    int count, int some, int kept, float* factors, float (&of_query)[tile_queries], const Load& load, const Factor& factor,
    const Write& write) {
  constexpr int tasks = tile_queries * (D / 4) / attention_threads > 1 ? tile_queries * (D / 4) / attention_threads : 1;
  float joined_most = nothing, joined_sum = 0;
  float4 all[tasks] = {};
  for (int from = 0; from < count; from += merged_parts) {
    int parts = min(count - from, merged_parts);
    __syncthreads();
    for (int i = threadIdx.x; i < parts * 2 * kept / 4; i += attention_threads) {
      reinterpret_cast<float4*>(factors)[i] = load(from + i / (kept / 2), kept * D + i % (kept / 2) * 4);
    }
    __syncthreads();
    if (threadIdx.x < some) {
      for (int c = 0; c < parts; c++) {
        float* at = factors + 2 * c * kept + threadIdx.x;
        float of_part = at[0], larger = fmaxf(joined_most, of_part);
        float old = weight_of(joined_most, larger), fresh = weight_of(of_part, larger);
        joined_sum = joined(joined_sum, old, at[kept], fresh);
        at[0] = old, at[kept] = fresh;
        joined_most = larger;
      }
      if (from + parts == count) {
        of_query[threadIdx.x] = factor(threadIdx.x, joined_most, joined_sum);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < tasks; i++) {
      int task = threadIdx.x + i * attention_threads, query = task / (D / 4), d = task % (D / 4) * 4;
      if (query >= some) {
        break;
      }
#pragma unroll 4
      for (int c = 0; c < parts; c++) {
        float4 own = load(from + c, query * D + d);
        float old = factors[2 * c * kept + query], fresh = factors[(2 * c + 1) * kept + query];
        all[i].x = joined(all[i].x, old, own.x, fresh);
        all[i].y = joined(all[i].y, old, own.y, fresh);
        all[i].z = joined(all[i].z, old, own.z, fresh);
        all[i].w = joined(all[i].w, old, own.w, fresh);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < tasks; i++) {
    int task = threadIdx.x + i * attention_threads, query = task / (D / 4), d = task % (D / 4) * 4;
    if (query < some) {
      float of = of_query[query];
      write(query, d, make_float4(all[i].x * of, all[i].y * of, all[i].z * of, all[i].w * of));
    }
  }
}

// Loads four 8 x 8 matrices, transposed. Each group of eight threads passes the row addresses of one matrix. Of matrix
// i, thread 4 g + t gets the elements (2 t, g) and (2 t + 1, g) in b[i].
template <class T>
__device__ inline void load_transposed(uint32_t (&b)[4], const T* at) {
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address));
}

// The weights of a query's scores in a part of two slots a lane, the largest score, and the sum of the weights before they are
// rounded. A warp calls it.
template <class T>
__device__ inline void weigh(const float* scores, T* weights, float& most, float& sum) {
  int lane = threadIdx.x % warp_size;
  float low = scores[lane], high = scores[lane + warp_size], largest = warp_max(fmaxf(low, high));
  low = weight_of(low, largest), high = weight_of(high, largest);
  float total = warp_sum(low + high);
  weights[lane] = narrow<T>(low);
  weights[lane + warp_size] = narrow<T>(high);
  if (lane == 0) {
    most = largest, sum = total;
  }
}

// Adds the weighted values of the steps `first` to `end` of a part, of 16 slots each, to `y`: the sums of 16 queries and
// 8 `Tiles` elements, as tensor cores have them. A warp calls it. `weights` are rows of `weight_step` elements, and `values`
// rows of `Step`, from the warp's first element on.
template <int Step, class T, int Tiles>
__device__ inline void add_weighted(float (&y)[Tiles][4], const T* weights, const T* values, int first, int end) {
  int lane = threadIdx.x % warp_size, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < part_slots / 16; k++) {
    if (k < first || k >= end) {
      continue;
    }
    uint32_t p[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      p[e] = *reinterpret_cast<const uint32_t*>(weights + (g + e % 2 * 8) * weight_step + 16 * k + 2 * t + e / 2 * 8);
    }
#pragma unroll
    for (int n = 0; n < Tiles; n += 2) {
      uint32_t v[4];
      load_transposed(v, values + (16 * k + lane % 16) * Step + 8 * n + lane / 16 * 8);
      multiply<T>(y[n], p, v[0], v[1]);
      multiply<T>(y[n + 1], p, v[2], v[3]);
    }
  }
}

} // namespace mlxrs::cuda
