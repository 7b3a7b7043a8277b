// Sizes of the kernels of stored.cuh, shared by host and device.
#pragma once

namespace mlxrs::cuda {

// Sizes of a key and a value. Packed vectors have groups of 2^group elements.
struct StoredHeads {
  int dim, value_dim, group;
};

constexpr int stored_queries = 16, stored_slots = 64;

// The shared memory of a block in bytes, for keys of up to d and values of up to v elements: queries, values and
// weights of 16 bits, scores in F32.
constexpr int stored_bytes(int d, int v) {
  return 2 * (stored_queries * (d + 8) + stored_slots * (v + 8) + stored_queries * (stored_slots + 8)) +
      4 * (stored_queries * (stored_slots + 1) + 2 * stored_queries);
}

// The floats of a part's result for 16 queries: weighted values, largest score, sum of exponentials.
constexpr int stored_partial(int v) {
  return stored_queries * (v + 2);
}

} // namespace mlxrs::cuda
