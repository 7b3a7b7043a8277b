// Rows of packed weights, written out.
#pragma once

#include "../isa.h"
#include "matmul.h"

namespace mlxrs::matmul {

// Rows [row, row + rows) of a matrix, with the scales and biases of groups [group, group + groups) as f32, row by row.
struct Panel {
  const Weights& w;
  long row, rows;
  long group, groups;
  const float *scales, *biases;
  // What will be wanted after this, to have it fetched: for each row so many bytes as are read of it, one after the
  // other from here on. May be null.
  const uint8_t* next;
};

// The functions for one instruction set. [k, k_end) are whole groups, and k is a multiple of 128.
struct Dequantizer {
  // Element i of row r goes to to[r * ld + i - k].
  void (*to_f32)(const Panel& p, long k, long k_end, float* to, long ld);
  // Rounded to bf16, in an order that dealt(w) tells:
  //   1   as they are;
  //   2   of each 64, the 32 even ones, then the odd ones;
  //   4   of each 64 and for j = 0 to 3, the 16 that leave j when divided by 4.
  // Where the last 64 are not complete, zeros stand for those that are missing, for which there must be room.
  void (*to_bf16)(const Panel& p, long k, long k_end, uint16_t* to, long ld);
  int (*dealt)(const Weights& w);
  // n scales or biases from element `at` on, as f32.
  void (*scales)(Coding coding, Float type, const void* from, long at, long n, float* to);
};

// Scales and biases of rows [row, row + rows), as far as there are any.
void dequantize_groups(const Dequantizer& dequantizer, const Weights& w, long row, long rows, float* scales, float* biases);

// Null where the machine or the compiler cannot.
const Dequantizer& dequantize_portable();
const Dequantizer* dequantize_avx2();
// With VBMI and BF16.
const Dequantizer* dequantize_avx512bf16();

// That of an instruction set that the machine has.
const Dequantizer& dequantizer_of(Isa machine);

} // namespace mlxrs::matmul
