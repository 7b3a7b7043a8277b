// Products with affine codes, and with those of E2M1, in whole numbers.
//
// An affine weight is q * scale + bias with a code q of 1 to 8 bits, so a product over one group of k is
//   scale * sum(q * x) + bias * sum(x),
// and sum(q * x) is a sum of whole numbers if x is one. So each group of a row of x becomes whole numbers of 16 bits and a
// scale, and codes are only spread to bytes or to 16 bits. A group's products are added as whole numbers, which loses nothing; what it
// adds to an element of y is then scale * sum(q * x) + bias * sum(x), and these terms are added one after the other.
//
// How exact that is: of the largest element of a group of x 2^-16 is rounded away, and of its other elements no more, where
// bf16 rounds 2^-9 of every weight away. No element is above 8 (group of 64), 11.3 (of 128) or 16 (of 256, on tiles) times the root
// mean square of its group. So the products are more exact than those of the same weights rounded to bf16, by eight times at least.
//
// An element of E2M1 is a whole number from -12 to 12 when it is doubled, and one from 0 to 24 with 12 added: the weight is
// (q - 12) * scale / 2, where q is looked up.
//
// Elements of E4M3 are no whole numbers; few rows of x are multiplied with them in f32 (fp8_few_rows.h).
//
// So an element of y is the same to the bit however many rows go with it, and whatever the vectors are. (On tiles, int8_amx.cpp has an
// order of its own.)
#pragma once

#include "matmul.h"

namespace mlxrs::matmul {

// The functions for one instruction set, for few rows of x or for many.
struct IntKernels {
  // What the rows of weights of a task should be a multiple of, and how many rows of x at most are packed as one.
  long unit, block;
  // Bytes of so many rows of x when packed, a multiple of 64.
  long (*packed_size)(const Weights& w, long rows);
  // Packs rows [first, first + rows) of p.x to memory that is aligned to 64 bytes. Rows that p.x does not have are zeros.
  void (*pack)(const Product& p, const Weights& w, long first, long rows, void* packed);

  // Bytes that a task needs.
  long (*scratch_size)(const Product& p, const Weights& w);
  // Rows [row, row_end) of the weights, on one thread. `packed` are all blocks, one behind the other.
  void (*rows)(const Product& p, const Weights& w, const void* packed, long row, long row_end, void* scratch);
};

struct Job;

void by_int_kernels(const Product& p, const Job& job, const IntKernels& kernels);

// Null where the compiler does not know the instructions. Which of them runs is decided by the table in matmul.cpp.
// int8: x is two planes of bytes, 256 high + low, by VPDPBUSD or TDPBUSD. For few rows (any number, but each is multiplied apart), for
// up to 8, and for more.
const IntKernels* int8_few_rows_avx512vnni();
const IntKernels* int8_8_rows_avx512vnni();
const IntKernels* int8_many_rows_avx512vnni();
const IntKernels* int8_amx();
// int16: products of 16 bits, by VPMADDWD on x86 and SMLAL on Arm.
const IntKernels* int16_few_rows_avx2();
const IntKernels* int16_many_rows_avx2();
const IntKernels* int16_neon();
// fp8: elements of E4M3, in f32.
const IntKernels* fp8_few_rows_avx512vnni();
const IntKernels* fp8_few_rows_avx2();

} // namespace mlxrs::matmul
