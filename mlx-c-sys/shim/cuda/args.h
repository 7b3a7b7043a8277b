// The arguments of the kernels, as the host fills them and the device reads them. Pointers are addresses on the device.
#pragma once

#include <stdint.h>

namespace mlxrs::cuda {

// A matrix [n, k] of a product, and where its part of the result goes.
struct Matrix {
  const void* weight;
  const void* scales;
  const void* biases;
  void* y; // [m, stride]
  int n, stride;
  int tiles; // Tiles of rows of this matrix and of those before it.
};

struct LinearArgs {
  const void* x; // [m, k]
  Matrix of[3];
  int count, m, k;
  int group_bits; // Groups have 32 times 2^group_bits elements.
  int gate; // -1: none; else `of` has two matrices whose products the gate joins
  bool early; // The kernel before this one has not written the matrices.
};

// How many blocks of columns `many_products` has in shared memory, by the rows of x of a block. Hopper and Blackwell's data centre cards have
// 227 KB for a block, other cards 99 KB, and an A100 163 KB.
constexpr int many_stages(bool is_roomy, int rows) {
  return !is_roomy ? 2 : rows == 64 ? 4 : 3;
}

// An index outside of its axis, in memory of the host, which the GPU writes over the bus.
struct Finding {
  uint32_t is_set;
  uint32_t round; // How often the host has read a finding, from 1 on.
  uint32_t operation;
  int32_t window;
  int64_t index, size;
};

// Where a kernel reports such an index (cuda/report.cuh).
struct Report {
  Finding* to;
  uint32_t* claimed; // On the device: the last round in which a kernel has reported something.
  uint32_t operation;
};

// Indices that are checked, elements of any integer type.
struct CheckArgs {
  static constexpr int most_axes = 8, most_ranges = 32;
  const void* from;
  void* to; // dense
  int64_t size;
  int ndim, bytes, count; // `count` ranges: that of element i is i % count
  bool is_signed;
  int shape[most_axes];
  int64_t strides[most_axes];
  // Of each range: the largest index, and what is added to a negative one, 0 where it is refused.
  struct {
    int64_t most, from_end, size;
    int window;
  } ranges[most_ranges];
  Report report;
};

struct LookupArgs {
  const uint32_t* indices; // null: `count` rows from `first` on
  const void* weight;
  const void* scales;
  const void* biases;
  void* y; // [count, k]
  int count, n, k, group_bits;
  int64_t first; // of all rows
  bool is_signed;
  Report report; // of indices
};

struct NormArgs {
  const void* x;
  const void* residual; // null: none
  const void* inner;    // null: none
  const void* outer;    // null: none
  void* sum;            // null where there is no residual
  void* normed;         // null where there is no outer weight
  int n;
  float eps;
};

// An array [B, H, L, D] whose last axis is dense. Strides are in elements.
struct Heads {
  const void* at;
  int64_t row, head, token;
};

// Projections [B, L, H D] that become heads.
struct HeadsArgs {
  const void* x; // dense
  const void* weight; // null: no norm
  const float* periods; // [dims / 2]
  const int32_t* offsets;
  int offset_step, rows, tokens, heads, dim, dims;
  float eps;
  void* y; // [B, H, L, D], or a buffer [B, H, slots, D]
  int slots; // 0: heads, else of a buffer
  bool ring;
  // Of a buffer: values that go beside the keys.
  Heads values;
  int value_heads, value_dim;
  void* value_buffer;
  bool is_aligned; // x, the weight and y begin at multiples of 16 bytes.
  bool beside; // It does not depend on the kernel before.
};

// Divides numbers below 2^24 by one below 256, without a division.
struct Divisor {
  int by;
  uint32_t factor; // 2^32 / by, rounded up

#ifdef __CUDACC__
  __device__ int quotient(int n) const {
    return by == 1 ? n : static_cast<int>(__umulhi(static_cast<uint32_t>(n), factor));
  }
#else
  explicit Divisor(int by = 1) : by(by), factor(static_cast<uint32_t>(((uint64_t(1) << 32) + by - 1) / by)) {}
#endif
};

// Which keys a query sees: mlxrs_mask and mlxrs_slots.
struct AttentionArgs {
  Heads q, k, v;
  const int32_t* offsets; // null: the last query stands at the last slot
  const float* sinks;     // null: none
  void* y;                // [B, L, H, D of v]
  float* partial;         // of each part, row, head and query: values, largest score, sum
  uint32_t* tickets;      // of each row, head and tile of queries
  int offset_step, rows, heads, kv_heads, tokens, slots;
  Divisor by_kv_heads, by_group; // Query heads of a head of keys.
  float scale, cap;
  int mask, layout, window;
  int parts; // of the keys, each on a block of its own; 1: a block goes through all keys
};

struct DrawArgs {
  const void* x; // [rows, n]
  const uint32_t* keys;
  const float* numbers;
  const int32_t* counts; // of logsumexp: not null; of argmax: null
  uint32_t* y;           // logsumexp writes floats
  uint32_t* ids;         // of a draw: y with 0 in place of no token
  int n;
};

struct CopyArgs {
  const void* from;
  void* to;
  int ndim;
  int64_t size;
  int shape[8];
  int64_t strides[8];
};

// Arrays that are copied to others of the same size.
struct SegmentArgs {
  static constexpr int most = 64;
  struct {
    const void* from;
    void* to;
    int64_t bytes;
  } of[most];
};

struct GatedArgs {
  const void* gate;
  const void* up;
  void* y;
  int64_t n;
  int kind; // mlxrs_gate; 2: cap tanh(gate / cap)
  float cap;
};

} // namespace mlxrs::cuda
