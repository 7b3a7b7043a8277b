// Products in bf16 by VDPBF16PS, which adds the products of two pairs to each lane.
//
// A lane holds a pair of elements of a row of x; a pair of a row of weights is broadcast to all lanes by its load. So weights are read in the
// checkpoint's layout, nothing is added across lanes, and only x, which is small, is transposed. For up to 4 rows of x most lanes would be
// empty: there weights are transposed in registers, and a lane is a row of weights. Either way an element of y sums the pairs of k in
// order, so that one row of x has the same bits alone and among many.
#pragma once

#include "dequantize.h"

namespace mlxrs::matmul {

struct Job;

// Bf16Pairs::unit rows of weights, or a multiple of it, and rows of x, over some of k.
struct PairTiles {
  // The first row of weights, and bytes from one to the next.
  const void* w;
  long w_row, rows;
  // Packed blocks of x from the first pair on, and bytes from one to the next.
  const void* x;
  long x_block;
  // Rows of x, and pairs of each.
  long m, pairs;
  // Sums of row r of weights begin at sums + r * distance; what is there is added to unless `first`.
  float* sums;
  long distance;
  bool first;
  // What is fetched meanwhile, `fetch_step` bytes further each time: as often as the rows have lines, for each two blocks of x. If null,
  // it is what comes behind each row.
  const char* fetch;
  long fetch_step;
};

// Bf16Pairs::lanes_of_few rows of weights, `w_row` bytes apart, and at most Bf16Pairs::few rows of x.
struct PairRows {
  const void* w;
  long w_row;
  const void* const* x;
  long m, pairs;
  // For each row of x those with all of the weights.
  float* sums;
};

struct Bf16Pairs {
  static constexpr long unit = 12, few = 4, lanes_of_few = 16;

  // How many rows of x a block of them has, and its bytes.
  static constexpr long lanes(long m) {
    return m <= 8 ? 8 : 16;
  }
  static constexpr long block_size(long m, long pairs) {
    return lanes(m) * pairs * 4;
  }

  // Packs a block of `rows` rows, of k elements each: others that it has room for become zeros. `dealt` is what Dequantizer::dealt says of
  // the weights.
  void (*pack)(const void* const* x, long rows, long k, int dealt, long lanes, long pairs, void* to);
  void (*multiply)(const PairTiles& t);
  void (*multiply_few)(const PairRows& r);
  // Sums of n rows of weights with m of x, rounded, to y[i] + row. They may be read up to a multiple of 16 rows.
  void (*write)(const float* sums, long distance, long m, long n, long row, void* const* y);
};

// Null without AVX-512 BF16.
const Bf16Pairs* bf16_pairs_avx512bf16();

void by_bf16_pairs(const Product& p, const Job& job, const Bf16Pairs& kernels, const Dequantizer& dequantizer);

} // namespace mlxrs::matmul
