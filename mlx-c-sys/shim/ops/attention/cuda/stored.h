// Sizes that the host and the kernels of stored.cuh share.
#pragma once

namespace mlxrs::cuda {

// Keys and values: heads of `dim` and `value_dim` elements. Packed ones have groups of 2^group elements.
struct StoredHeads {
  int dim, value_dim, group;
};

constexpr int stored_queries = 16, stored_slots = 64;

// Bytes of shared memory of a block, for heads of up to D and V elements: queries, values and weights of 16 bits, scores in F32.
constexpr int stored_bytes(int d, int v) {
  return 2 * (stored_queries * (d + 8) + stored_slots * (v + 8) + stored_queries * (stored_slots + 8)) +
      4 * (stored_queries * (stored_slots + 1) + 2 * stored_queries);
}

// Floats of a part of the keys, for 16 queries: values, the largest score, the sum.
constexpr int stored_partial(int v) {
  return stored_queries * (v + 2);
}

} // namespace mlxrs::cuda
