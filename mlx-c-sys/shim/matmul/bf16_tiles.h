// Products in bf16 on AMX tiles.
//
// A tile register has 16 rows of 64 bytes. TDPBF16PS multiplies 16 rows of weights (32 elements of k each, in memory
// order) with 16 rows of x (packed as pairs of k) and adds to 16 x 16 sums: 16 x 16 x 32 products in 16 cycles. Each
// element of y is summed pair by pair in the order of k, and does not depend on the other rows of the tile.
#pragma once

#include "dequantize.h"

namespace mlxrs::matmul {

struct Bf16Tiles {
  // The number of tiles along k, of 32 elements each. `dealt` is the element order of the weights (Dequantizer::dealt).
  static long steps(long k, int dealt) {
    return dealt > 1 ? (k + 63) / 64 * 2 : (k + 31) / 32;
  }
  // The elements of packed x: blocks of 16 rows with `steps` tiles each. A tile is 16 pairs of k x 16 rows.
  static long packed_size(long m, long steps) {
    return (m + 15) / 16 * steps * 512;
  }

  // Packs rows [16 block, 16 block + 16) of p.x, which is in bf16.
  void (*pack)(const Product& p, long k, int dealt, long block, uint16_t* packed);

  // Computes y for rows [row, row_end) of the weights, on one thread. `scratch` has scratch_size bytes, aligned to 64.
  long (*scratch_size)(const Product& p, const Weights& w, const Dequantizer& dequantizer, long rows);
  void (*rows)(
      const Product& p, const Weights& w, const Dequantizer& dequantizer, const uint16_t* packed, long row, long row_end,
      void* scratch);

  // The bytes of x that stay in L2 while weights are read: the size to aim at, and the limit.
  static constexpr long band_bytes = 5 << 18, most_band_bytes = 13 << 17;
  static bool is_large(long m, long k) {
    return 2 * m * k > band_bytes;
  }
  // The rows of x in a task: all rows, or a multiple of 16. Each band dequantises all weights, so a band has at least
  // `least` rows.
  static long band(long m, long k) {
    constexpr long least = 288;
    const long most = band_bytes / (2 * k);
    return is_large(m, k) ? part_of(m, most < least ? least : most, 16) : m;
  }
  // The elements of k for which a band of x stays in L2.
  static long piece(long band, long k) {
    return part_of(k, most_band_bytes / (2 * band), 128);
  }
  // Divides n into equal parts of at most `most`, and returns their length, a multiple of `unit`.
  static long part_of(long n, long most, long unit) {
    long parts = (n + most - 1) / most;
    return ((n + parts - 1) / parts + unit - 1) / unit * unit;
  }

  // The rows of weights of a task are a multiple of `unit`. `most` is the largest number if x has more than
  // `memory_bound_rows` rows.
  static constexpr long unit = 64;
  static long most(long m, long k) {
    constexpr long some_rows = 256, waiting = 512, all = 1L << 40;
    return !is_large(m, k) ? some_rows : piece(band(m, k), k) < k ? waiting : all;
  }
};

// Null if the compiler does not support the instructions.
const Bf16Tiles* bf16_tiles_amx();

struct Job;

void by_bf16_tiles(const Product& p, const Job& job, const Bf16Tiles& tiles, const Dequantizer& dequantizer);

} // namespace mlxrs::matmul
