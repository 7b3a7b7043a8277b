// Device code that attention.cu, prompt.cu and stored.cuh share: sizes of tiles and parts, weights of scores, merging of
// parts, and loads of values for tensor cores.
#pragma once

#include "cuda/args.h"
#include "cuda/device.cuh"
#include "cuda/key_mask.h"

namespace mlxrs::cuda {

constexpr int tile_queries = 16, part_slots = 64;
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

// What the queries of a row see.
__device__ inline KeyMask mask_of(const AttentionArgs& a, int row, int tokens) {
  bool is_flat = a.flat.starts != nullptr;
  int offset = a.offsets != nullptr ? __ldcg(a.offsets + row * a.offset_step) : is_flat ? 0 : a.slots - tokens;
  return {a.mask, a.layout, a.window, offset, tokens, is_flat ? offset + tokens : a.slots, a.chunk};
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

// Loads four 8 x 8 matrices, transposed. Each group of eight threads passes the row addresses of one matrix. Of matrix
// i, thread 4 g + t gets the elements (2 t, g) and (2 t + 1, g) in b[i].
template <class T>
__device__ inline void load_transposed(uint32_t (&b)[4], const T* at) {
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address));
}

} // namespace mlxrs::cuda
