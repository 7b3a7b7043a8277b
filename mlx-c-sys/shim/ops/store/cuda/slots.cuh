// The slots of a step's tokens in the buffers of a KV cache.
#pragma once

#include "cuda/args.h"

namespace mlxrs::cuda {

// The slot of a token in a buffer, or -1 if it has none, as `Slots::of` in ops/store/node.cpp.
__device__ inline int slot_of(const HeadsArgs& a, int row, int token) {
  // Bypasses L1, because the kernel may run beside the previous one.
  int position = __ldcg(a.offsets + row * a.offset_step) + token;
  if (a.ring) {
    return token + a.slots < a.tokens ? -1 : (position % a.slots + a.slots) % a.slots;
  }
  return position >= 0 && position < a.slots ? position : -1;
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
  int head = task % per_token, token = task / per_token % tokens, row = task / per_token / tokens, slot = slot_of(a, row, token);
  if (slot < 0) {
    return {};
  }
  bool is_key = head < a.heads;
  head -= is_key ? 0 : a.heads;
  const Heads& from = is_key ? keys : a.values;
  const T* x = static_cast<const T*>(from.at) + row * from.row + head * from.head + token * from.token;
  int64_t place = (static_cast<int64_t>(row) * (is_key ? a.heads : a.value_heads) + head) * a.slots + slot;
  return {x, is_key, is_key ? a.dim : a.value_dim, place};
}

} // namespace mlxrs::cuda
