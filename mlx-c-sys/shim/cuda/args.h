// Arguments of the CUDA kernels, shared by host and device. Pointers are device addresses.
#pragma once

#include <stdint.h>

namespace mlxrs::cuda {

// A matrix [n, k] of a product, and the place of its result.
struct Matrix {
  const void* weight;
  const void* scales;
  const void* biases;
  void* y; // [m, n] with rows `stride` elements apart
  int n, stride;
  int tiles; // number of tiles of this matrix and of those before it
};

// Arguments of `product` and `many_products`: x multiplied with up to three matrices.
struct LinearArgs {
  const void* x; // [m, k]
  Matrix of[3];
  int count, m, k;
  int group_bits; // log2(group size / 32)
  int gate; // -1 for none; else `of` has two matrices, and the result is gate(x of[0]^T) * (x of[1]^T)
  // Whether the matrices are older than the kernel before this one, so that they can be loaded before that kernel ends.
  bool early;
};

// Whether a block can use 227 KB of shared memory on GPUs of this major compute capability: on Hopper and on Blackwell
// data-centre GPUs. It is 163 KB on an A100 and 99 KB on other GPUs.
constexpr bool is_roomy(int generation) {
  return generation >= 9 && generation < 12;
}

// The stages of blocks of columns that `many_products` has in shared memory, for tiles of `rows` rows of x.
constexpr int many_stages(bool has_room, int rows) {
  return !has_room ? 2 : rows == 64 ? 4 : 3;
}

// An index out of range that a kernel has found.
struct Finding {
  uint32_t is_set;
  uint32_t operation;
  int32_t window;
  int64_t index, size;
};

// The findings of a stream. They are in pinned host memory, which the GPU writes directly.
struct Findings {
  static constexpr int slots = 1000; // so that all fit in 32 KB
  uint32_t any; // whether one is set
  uint32_t round; // starts at 1 and increases each time the host reads the findings
  Finding of[slots];
};

// The place where a kernel reports an index out of range (cuda/report.cuh).
struct Report {
  Findings* to;
  uint32_t* claimed; // device memory: for each slot the last round in which a kernel has reported
  uint32_t operation, slot;
};

// Arguments of the kernel that checks indices of any integer type.
struct CheckArgs {
  static constexpr int most_axes = 8, most_ranges = 32;
  const void* from;
  void* to; // dense
  int64_t size;
  int ndim, bytes, count; // element i has range i % count
  bool is_signed;
  int shape[most_axes];
  int64_t strides[most_axes];
  // For each range: the largest valid index, and the number that is added to a negative index (0 if negative indices
  // are invalid).
  struct {
    int64_t most, from_end, size;
    int window;
  } ranges[most_ranges];
  Report report;
};

// Arguments of the kernel that reads (and unpacks) rows of a matrix.
struct LookupArgs {
  const uint32_t* indices; // null: the rows `first` to `first + count - 1`
  const void* weight;
  const void* scales;
  const void* biases;
  void* y; // [count, k]
  int count, n, k, group_bits;
  int64_t first; // first row if `indices` is null; counted over all rows
  bool is_signed;
  Report report; // for indices out of range
};

// sum = x + residual, or rms_norm(x, inner) + residual with `inner`; normed = rms_norm(sum, outer). Without a residual,
// normed = rms_norm(x, outer).
struct NormArgs {
  const void* x;
  const void* residual; // or null
  const void* inner;    // or null
  const void* outer;    // or null
  void* sum;            // null without a residual
  void* normed;         // null if only the sum is wanted
  int rows, n;
  float eps;
  bool early; // whether the weights are older than the kernel before this one
};

// The threads of a block that computes a norm. A product that computes the norm of its x has joined_pairs pairs of elements a
// thread, so rows of up to 2,048 elements.
constexpr int norm_threads = 256, joined_pairs = 4, most_joined = 2 * joined_pairs * norm_threads;

// An array [B, H, L, D] whose last axis is dense. `row`, `head` and `token` are the strides of the other axes, in
// elements.
struct Heads {
  const void* at;
  int64_t row, head, token;
};

// The positions of a page that attention reads.
constexpr int page_slots = 64;

// The rows of a flat step (mlxrs_pages in mlxrs_fast.h). `starts` is null for an ordinary step, and `tables` for a step
// without pages.
struct FlatArgs {
  const int32_t* starts; // [rows + 1]
  const int32_t* tables; // [rows, columns]; null: rows hold no positions before the step
  int columns, rows, most; // most: no row brings more tokens
};

// Projections [B, L, H D] that become heads: normed, rotated, and optionally written to the KV cache.
struct HeadsArgs {
  const void* x; // [B, L, H D], dense
  const void* weight; // [D], or null for no norm
  const float* periods; // [dims / 2]
  const int32_t* offsets;
  bool has_positions; // offsets are [B, L]: the position of each token
  int offset_step, rows, tokens, heads, dim, dims;
  int heads_of_warp; // how many heads of a token a warp computes; divides `heads`
  float eps;
  void* y; // heads [B, H, L, D], or a buffer of the KV cache [B, H, slots, D]
  int slots; // 0 if y is an array of heads; with pages, the positions of a page
  bool ring;
  FlatArgs flat; // x and the values are those of one row, [1, T, ..], and y is a pool of pages
  const int32_t* lens; // of a flat step, [rows]
  // Values that are copied to a buffer of their own beside the keys.
  Heads values;
  int value_heads, value_dim;
  void* value_buffer;
  bool is_aligned; // x, weight and y begin at multiples of 16 bytes
  bool beside; // the kernel does not depend on the one before it
  bool early; // weight, periods and offsets are older than the kernel before this one; not with `beside`
};

// Divides numbers below 2^24 by a constant below 256 with a multiplication.
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

// Arguments of attention. The masks and layouts are mlxrs_mask and mlxrs_slots (mlxrs_fast.h).
struct AttentionArgs {
  Heads q, k, v;
  const int32_t* offsets; // null: the last query has the position of the last slot
  const float* sinks;     // or null
  void* y;                // [B, L, H, D of v]
  float* partial;         // for each part, row, head and query: weighted values, largest score, sum of exponentials
  uint32_t* tickets;      // a counter for each row, head and tile of queries
  int offset_step, rows, heads, kv_heads, tokens, slots;
  Divisor by_kv_heads, by_group; // by_group: query heads of a KV head
  float scale, cap;
  int mask, layout, window;
  int chunk; // 0: none
  // Of a flat step without pages: the positions after its own that a query sees. Then the window is that much longer, because
  // kernels count it from the last position that a query sees.
  int ahead;
  // q and y are those of one row, [1, H, T, D]. k and v are pools of pages and offsets are the rows' lengths, or k and v are the
  // step's own, [1, K, T, D].
  FlatArgs flat;
  bool adds; // there are slopes or a mask
  const float* slopes; // ALiBi [H], or null
  // A mask [1 or H, 1 or T, columns], or null: column j is position j. Numbers are added to scores. Keys whose boolean is false
  // are hidden; a query from which all keys are hidden weighs them equally.
  const void* added;
  bool added_is_bool;
  int added_columns;
  int64_t added_head, added_token, added_column; // strides; 0 where there is one for all
  int64_t k_page, v_page; // strides of pages, in elements or words
  int tokens_of_all; // of a flat step: T
  int parts; // number of ranges that the keys are divided into, one block each; 1: one block reads all keys
  int kept;  // the queries of a tile whose results of parts are written to `partial`, a multiple of 4 (attention.cu)
  bool is_cluster; // the blocks of the parts are a cluster
  bool early; // offsets, and slots of positions before them, are older than the kernel before this one
  bool sorts; // blocks of longer rows come first (decode.cu)
};

// The most blocks of a cluster that all GPUs with clusters support.
constexpr int cluster_blocks = 8;

// Arguments of sampling, and of logsumexp and argmax (which use x, counts, y and n).
struct DrawArgs {
  const void* x; // [rows, n]
  const uint32_t* keys;
  const float* numbers;
  const int32_t* counts; // logsumexp: not null; argmax: null
  uint32_t* y;           // ids, ~0 where no token can be drawn; logsumexp writes floats
  uint32_t* ids;         // y with 0 in place of ~0
  int n;
};

// Arguments of a copy of a strided array to a dense one.
struct CopyArgs {
  const void* from;
  void* to;
  int ndim;
  int64_t size;
  int shape[8];
  int64_t strides[8];
};

// Up to `most` copies between dense arrays of equal size, in one kernel.
struct SegmentArgs {
  static constexpr int most = 64;
  struct {
    const void* from;
    void* to;
    int64_t bytes;
  } of[most];
};

// Arguments of gates and soft caps, elementwise.
struct GatedArgs {
  const void* gate;
  const void* up;
  void* y;
  int64_t n;
  int kind; // an mlxrs_gate, or 2 for cap tanh(gate / cap)
  float cap;
};

// The gradients of y = gate(x) up.
struct GatedVjpArgs {
  const void* gate;
  const void* up;
  const void* dy;
  void* dgate;
  void* dup;
  int64_t n;
  int kind; // an mlxrs_gate
};

} // namespace mlxrs::cuda
