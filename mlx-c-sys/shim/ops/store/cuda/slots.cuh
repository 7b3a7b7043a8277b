// The slots of a step's tokens in the buffers of a KV cache, or in pages.
#pragma once

#include "cuda/args.h"

namespace mlxrs::cuda {

// The row of a token of a flat step; the number of rows for a token of none.
__device__ inline int row_of(const FlatArgs& flat, int token) {
  // Bypasses L1, because the kernel may run beside the previous one.
  auto start = [&](int row) { return __ldcg(flat.starts + row); };
  // Rows mostly bring the same number of tokens.
  int row = min(token / flat.most, flat.rows - 1);
  if (start(row) <= token && token < start(row + 1)) {
    return row;
  }
  int low = 0, high = flat.rows; // the first row that begins behind the token is from low + 1 to high
  while (low < high) {
    int middle = (low + high) / 2;
    if (start(middle + 1) <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The place of a token: slot `slot` of each head of block `block` of a buffer, which is a row or a page. The slot is -1 if
// the token has no place, as in `Slots::of` of ops/store/node.cpp.
struct Place {
  int block, slot;
};
__device__ inline Place place_of(const HeadsArgs& a, int row, int token) {
  if (a.flat.tables != nullptr) {
    row = row_of(a.flat, token);
    if (row >= a.flat.rows) {
      return {0, -1};
    }
    int position = __ldcg(a.lens + row) + token - __ldcg(a.flat.starts + row);
    int page = __ldcg(a.flat.tables + static_cast<int64_t>(row) * a.flat.columns + position / a.slots % a.flat.columns);
    return {page, position % a.slots};
  }
  int position = __ldcg(a.offsets + row * a.offset_step) + token;
  if (a.ring) {
    return {row, token + a.slots < a.tokens ? -1 : (position % a.slots + a.slots) % a.slots};
  }
  return {row, position >= 0 && position < a.slots ? position : -1};
}

// A new key or value of one head and token.
template <class T>
struct NewVector {
  const T* x; // null if the vector has no slot
  bool is_key;
  int dim;
  int64_t place; // its place in the buffer, counted in vectors
};

// The key or value of task number `task`. Tasks are the heads of keys (which are heads already), then those of values,
// for each token and row.
template <class T>
__device__ inline NewVector<T> vector_of(const HeadsArgs& a, const Heads& keys, uint32_t task) {
  uint32_t per_token = a.heads + a.value_heads, tokens = a.tokens;
  if (task >= a.rows * tokens * per_token) {
    return {};
  }
  int head = task % per_token, token = task / per_token % tokens, row = task / per_token / tokens;
  Place to = place_of(a, row, token);
  if (to.slot < 0) {
    return {};
  }
  bool is_key = head < a.heads;
  head -= is_key ? 0 : a.heads;
  const Heads& from = is_key ? keys : a.values;
  const T* x = static_cast<const T*>(from.at) + row * from.row + head * from.head + token * from.token;
  int64_t place = (static_cast<int64_t>(to.block) * (is_key ? a.heads : a.value_heads) + head) * a.slots + to.slot;
  return {x, is_key, is_key ? a.dim : a.value_dim, place};
}

} // namespace mlxrs::cuda
