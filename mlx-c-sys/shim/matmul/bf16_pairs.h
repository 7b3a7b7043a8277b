// Products in bf16 with VDPBF16PS, which adds the products of two pairs of elements to each lane.
//
// A lane holds a pair of elements of one row of x, and a load broadcasts a pair of a row of weights to all lanes. So
// weights are read in the checkpoint's layout, nothing is added across lanes, and only x, which is small, is
// transposed. With at most 4 rows of x most lanes would be empty; then weights are transposed in registers, and a lane
// is a row of weights. In both forms an element of y adds the pairs in the order of k, so that a row of x gives the
// same bits alone and in a batch.
#pragma once

#include "dequantize.h"

namespace mlxrs::matmul {

struct Job;

// Operands of `multiply`: a multiple of Bf16Pairs::unit rows of weights, m rows of x, and a range of k.
struct PairTiles {
  // The first row of weights, the stride of rows in bytes, and the number of rows.
  const void* w;
  long w_row, rows;
  // The packed blocks of x from the first pair on, and the stride of blocks in bytes.
  const void* x;
  long x_block;
  // The number of rows of x, and of pairs in a row.
  long m, pairs;
  // The sums for row r of the weights begin at sums + r * distance. They start at zero if `first`, else they are added
  // to.
  float* sums;
  long distance;
  bool first;
  // Memory to prefetch meanwhile: `fetch`, then `fetch_step` bytes further for each cache line of the rows and each two
  // blocks of x. If null, the memory after each row is prefetched.
  const char* fetch;
  long fetch_step;
};

// Operands of `multiply_few`: Bf16Pairs::lanes_of_few rows of weights, `w_row` bytes apart, and at most Bf16Pairs::few
// rows of x.
struct PairRows {
  const void* w;
  long w_row;
  const void* const* x;
  long m, pairs;
  // For each row of x, its sums for all rows of weights.
  float* sums;
};

struct Bf16Pairs {
  static constexpr long unit = 12, few = 4, lanes_of_few = 16;

  // The rows of x in a packed block, and the bytes of a block.
  static constexpr long lanes(long m) {
    return m <= 8 ? 8 : 16;
  }
  static constexpr long block_size(long m, long pairs) {
    return lanes(m) * pairs * 4;
  }

  // Packs a block of `rows` rows of k elements each. The block's other rows become zeros. `dealt` is the element order
  // of the weights (Dequantizer::dealt).
  void (*pack)(const void* const* x, long rows, long k, int dealt, long lanes, long pairs, void* to);
  void (*multiply)(const PairTiles& t);
  void (*multiply_few)(const PairRows& r);
  // Rounds the sums of n rows of weights for m rows of x, and writes them to y[i] + row. Sums are read up to a multiple
  // of 16 rows.
  void (*write)(const float* sums, long distance, long m, long n, long row, void* const* y);
};

// Null without AVX-512 BF16.
const Bf16Pairs* bf16_pairs_avx512bf16();

void by_bf16_pairs(const Product& p, const Job& job, const Bf16Pairs& kernels, const Dequantizer& dequantizer);

} // namespace mlxrs::matmul
