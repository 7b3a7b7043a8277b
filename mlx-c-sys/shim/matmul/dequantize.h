// Converts rows of weights, dense or packed, to f32 or bf16.
#pragma once

#include "matmul.h"
#include "runtime/isa.h"

namespace mlxrs::matmul {

// Rows [row, row + rows) of a matrix. `scales` and `biases` are those of the groups [group, group + groups) as f32, row
// by row.
struct Panel {
  const Weights& w;
  long row, rows;
  long group, groups;
  const float *scales, *biases;
  // Memory to prefetch for the next panel, with as many bytes as this panel reads; or null.
  const uint8_t* next;
};

// The functions for one instruction set. [k, k_end) are whole groups, and k is a multiple of 128.
struct Dequantizer {
  // Element i of row r goes to to[r * ld + i - k].
  void (*to_f32)(const Panel& p, long k, long k_end, float* to, long ld);
  // Rounds to bf16. The order of the elements in each block of 64 depends on dealt(w):
  //   1   unchanged;
  //   2   the 32 even elements, then the odd ones;
  //   4   for j = 0 to 3, the 16 elements whose index modulo 4 is j.
  // The last block is padded with zeros; `to` must have room for them.
  void (*to_bf16)(const Panel& p, long k, long k_end, uint16_t* to, long ld);
  int (*dealt)(const Weights& w);
  // Converts n scales or biases from element `at` on to f32.
  void (*scales)(Coding coding, Float type, const void* from, long at, long n, float* to);
};

// Scales and biases of rows [row, row + rows), if w has them.
void dequantize_groups(const Dequantizer& dequantizer, const Weights& w, long row, long rows, float* scales, float* biases);

// The functions for any machine.
const Dequantizer& dequantize_portable();
// Null if the compiler does not support the instructions.
const Dequantizer* dequantize_avx2();
// The functions with AVX-512 VBMI and BF16.
const Dequantizer* dequantize_avx512bf16();

// The functions for the largest supported instruction set of `machine`.
const Dequantizer& dequantizer_of(Isa machine);

} // namespace mlxrs::matmul
