// The operands of the sgemm kernels: one f32 matrix product, C = alpha A B + beta C, and the part of it that a task
// computes.
//
// All kernels add in the same order. Callers rely on this order, because a request's tokens must not depend on its
// batch. An element of C depends only on its row of A, its column of B, and K:
//   1. lane l of V::width lanes sums, by fused multiply-add and from zero, the products of k = l, l + width, ...;
//      when width does not divide K, the lanes that end early add one product of zeros, which only turns -0 into 0;
//   2. the lanes are added as a tree: l and l + width/2, then l and l + width/4, and so on;
//   3. alpha times that sum, plus beta times the old element if beta is not zero.
// Blocking does not change the order: at the end of a block of K a lane's partial sum is stored, and the next block
// continues it. So a result does not depend on M, N, the layout, the kernel, or the number of threads.
#pragma once

#include <cstdint>

namespace mlxrs::sgemm {

// A is m x k, B is k x n, C is m x n. All strides are in elements.
struct Product {
  long m, n, k;
  const float* a;
  long a_row, a_k;
  const float* b;
  long b_col, b_k;
  float* c;
  long c_row, c_col;
  float alpha, beta;
};

// 16-bit elements. Some kernels widen them as they load them.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// Rows [row, row_end) and columns [col, col_end) of C.
struct Part {
  long row, row_end, col, col_end;
};

// A range of memory that is read soon.
struct MemoryRange {
  const void* from;
  long bytes;
};

// The kernels of one instruction set. Their buffers must be aligned to 64 bytes.
struct Kernels {
  const char* name;
  // For at most `max_direct_rows` rows and B contiguous along k. B is read once, in place. `rows` is A, packed by
  // `direct_pack` into direct_size(...) floats, for all parts.
  long (*direct_size)(const Product&);
  void (*direct_pack)(const Product&, float* rows);
  void (*direct)(const Product&, const float* rows, long col, long col_end);
  // The columns that are processed at a time.
  long (*direct_cols)(const Product&);
  // The same for 16-bit elements of B.
  void (*direct_bf16)(const Product&, const float* rows, long col, long col_end);
  void (*direct_f16)(const Product&, const float* rows, long col, long col_end);

  // For at most `max_stream_rows` rows and B contiguous along its columns. B is read once, row after row.
  void (*stream)(const Product&, long col, long col_end);

  // For all other products, through packed copies of A's rows and B's columns. A tile has `tile_cols` columns, and
  // parts should begin at multiples of it.
  long tile_cols;
  long (*rows_size)(const Product&, long rows);
  void (*pack_rows)(const Product&, long row, long row_end, float* rows);
  long (*cols_size)(const Product&, long cols);
  void (*pack_cols)(const Product&, long col, long col_end, float* cols);
  // The same for 16-bit elements of B.
  void (*pack_cols_bf16)(const Product&, long col, long col_end, float* cols);
  void (*pack_cols_f16)(const Product&, long col, long col_end, float* cols);
  // `open` has open_size(..., rows of the part) floats for partial sums. `meanwhile` is prefetched.
  long (*open_size)(const Product&, long rows);
  void (*packed)(const Product&, const Part&, const float* rows, const float* cols, float* open, const MemoryRange& meanwhile);
};

constexpr long max_direct_rows = 48;
constexpr long max_stream_rows = 4;

// Null on other architectures.
const Kernels* avx512();
const Kernels* avx2();
const Kernels& portable();

// The kernels for isa() (isa.h).
const Kernels& chosen();

} // namespace mlxrs::sgemm
