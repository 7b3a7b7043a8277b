// What the kernels are told: one f32 matrix product, C = alpha A B + beta C, and the parts of it that a task computes.
//
// The kernels keep one rule, on which callers rely (a request's tokens do not depend on its batch): an
// element of C is a function of its row of A, its column of B and K alone. It is always summed in this order:
//   1. lane l of V::width lanes sums, by fused multiply-add and from zero, the products of k = l, l + width, ...;
//      when width does not divide K, the lanes that run out add one product of zeros, which only turns -0 into 0;
//   2. the lanes are added as a tree: l and l + width/2, then l and l + width/4, and so on;
//   3. alpha times that sum, plus beta times the old element when beta is not zero.
// Blocking never ends a lane's sum: at the end of a block of K, its partial sum is stored, and loaded again for the next block. So
// a result does not depend on M, N, the layout, the kernel, or the number of threads.
#pragma once

#include <cstdint>

namespace mlxrs::sgemm {

// A is m x k, B is k x n, C is m x n; all strides count elements.
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

// Elements of 16 bits, which some kernels widen as they load them.
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

// Memory that will be read soon.
struct Stretch {
  const void* from;
  long bytes;
};

// The kernels for one instruction set. Memory for them is aligned to 64 bytes.
struct Kernels {
  const char* name;
  // Few rows (at most `max_direct_rows`), B contiguous in k: B is read once, where it is. `rows` is A as `direct_pack`
  // has put it into direct_size(...) floats, for all parts.
  long (*direct_size)(const Product&);
  void (*direct_pack)(const Product&, float* rows);
  void (*direct)(const Product&, const float* rows, long col, long col_end);
  // How many columns it takes at a time.
  long (*direct_cols)(const Product&);
  // The same where `b` points to elements of 16 bits.
  void (*direct_bf16)(const Product&, const float* rows, long col, long col_end);
  void (*direct_f16)(const Product&, const float* rows, long col, long col_end);

  // At most `max_stream_rows` rows, B contiguous in its columns: B is read once, row after row.
  void (*stream)(const Product&, long col, long col_end);

  // Anything, through copies of A's rows and B's columns in the order of use. Tiles take so many columns at a time: parts should
  // begin at multiples.
  long tile_cols;
  long (*rows_size)(const Product&, long rows);
  void (*pack_rows)(const Product&, long row, long row_end, float* rows);
  long (*cols_size)(const Product&, long cols);
  void (*pack_cols)(const Product&, long col, long col_end, float* cols);
  // The same where `b` points to elements of 16 bits.
  void (*pack_cols_bf16)(const Product&, long col, long col_end, float* cols);
  void (*pack_cols_f16)(const Product&, long col, long col_end, float* cols);
  // `open` has open_size(..., rows of the part) floats; `meanwhile` is fetched.
  long (*open_size)(const Product&, long rows);
  void (*packed)(const Product&, const Part&, const float* rows, const float* cols, float* open, const Stretch& meanwhile);
};

constexpr long max_direct_rows = 48;
constexpr long max_stream_rows = 4;

// Null on machines of another architecture.
const Kernels* avx512();
const Kernels* avx2();
const Kernels& portable();

// The kernels of isa().
const Kernels& chosen();

} // namespace mlxrs::sgemm
