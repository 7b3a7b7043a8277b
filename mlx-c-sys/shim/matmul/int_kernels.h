// Integer products with affine codes and with e2m1.
//
// An affine weight is q * scale + bias with a code q of 1 to 8 bits, so a product over one group of k is
//   scale * sum(q * x) + bias * sum(x),
// and sum(q * x) is an integer sum if x consists of integers. So each group of a row of x is converted to 16-bit
// integers and a scale, and codes are widened to bytes or to 16 bits. The products of a group are added as integers,
// exactly. The term of a group in an element of y is scale * sum(q * x) + bias * sum(x), and terms are added one after
// the other.
//
// Error: an element of x is rounded by at most 2^-16 of the largest element of its group, where bf16 rounds every
// weight by 2^-9. No element is larger than 8 (groups of 64), 11.3 (of 128) or 16 (of 256, on tiles) times the root
// mean square of its group. So these products are at least eight times more exact than products of weights rounded to
// bf16.
//
// Twice an e2m1 number is an integer from -12 to 12. Plus 12 it is a code q, which is looked up in a table: the weight
// is (q - 12) * scale / 2.
//
// e4m3 numbers are not integers: fp8_few_rows.h multiplies them in f32.
//
// An element of y has the same bits for any number of rows and any vector width. (int8_amx.cpp adds in another order.)
#pragma once

#include "matmul.h"

namespace mlxrs::matmul {

// The functions of one instruction set and a range of numbers of rows of x.
struct IntKernels {
  // The rows of weights of a task are a multiple of `unit`. At most `block` rows of x are packed together.
  long unit, block;
  // The bytes of `rows` packed rows of x, a multiple of 64.
  long (*packed_size)(const Weights& w, long rows);
  // Packs rows [first, first + rows) of p.x into memory that is aligned to 64 bytes. Rows after the last one become
  // zeros.
  void (*pack)(const Product& p, const Weights& w, long first, long rows, void* packed);

  // The bytes of scratch memory of a task.
  long (*scratch_size)(const Product& p, const Weights& w);
  // Multiplies rows [row, row_end) of the weights, on one thread. `packed` has all blocks of x, one after the other.
  void (*rows)(const Product& p, const Weights& w, const void* packed, long row, long row_end, void* scratch);
};

struct Job;

void by_int_kernels(const Product& p, const Job& job, const IntKernels& kernels);

// Null if the compiler does not support the instructions. The table in matmul.cpp decides which kernel runs.
// int8: x is two planes of bytes, 256 high + low, multiplied by VPDPBUSD or TDPBUSD. The kernels are for few rows (any
// number works, but each row is multiplied separately), for up to 8 rows, and for more.
const IntKernels* int8_few_rows_avx512vnni();
const IntKernels* int8_8_rows_avx512vnni();
const IntKernels* int8_many_rows_avx512vnni();
const IntKernels* int8_amx();
// int16: 16-bit products by VPMADDWD on x86 and SMLAL on Arm.
const IntKernels* int16_few_rows_avx2();
const IntKernels* int16_many_rows_avx2();
const IntKernels* int16_neon();
// fp8: e4m3 numbers, multiplied in f32.
const IntKernels* fp8_few_rows_avx512vnni();
const IntKernels* fp8_few_rows_avx2();

} // namespace mlxrs::matmul
