// Products in bf16 on AMX tiles.
//
// A tile register has 16 rows of 64 bytes. TDPBF16PS multiplies 16 rows of weights (32 elements of k each, in memory
// order) with 16 rows of x (which must be packed as pairs of k) and adds the products to 16 x 16 sums: 16 x 16 x 32
// products in 16 cycles. Each element is summed pair by pair in the order of k, whatever the other rows of the tile
// are.
#pragma once

#include "dequantize.h"

namespace mlxrs::matmul {

struct Bf16Tiles {
  // The number of tiles along k, of 32 elements each. `dealt` is the order of the weights' elements
  // (Dequantizer::dealt).
  static long steps(long k, int dealt) {
    return dealt > 1 ? (k + 63) / 64 * 2 : (k + 31) / 32;
  }
  // The number of elements of packed x: blocks of 16 rows, of `steps` tiles each; a tile is 16 pairs of k x 16 rows.
  static long packed_size(long m, long steps) {
    return (m + 15) / 16 * steps * 512;
  }

  // Packs rows [16 block, 16 block + 16) of p.x, which is in bf16.
  void (*pack)(const Product& p, long k, int dealt, long block, uint16_t* packed);

  // Rows [row, row_end) of the weights, on one thread. `scratch` has scratch_size bytes, aligned to 64.
  long (*scratch_size)(const Product& p, const Weights& w, const Dequantizer& dequantizer, long rows);
  void (*rows)(
      const Product& p, const Weights& w, const Dequantizer& dequantizer, const uint16_t* packed, long row, long row_end,
      void* scratch);

  // The bytes of x that stay in L2 while weights are read: comfortably, and at most.
  static constexpr long band_bytes = 5 << 18, most_band_bytes = 13 << 17;
  static bool is_large(long m, long k) {
    return 2 * m * k > band_bytes;
  }
  // The number of rows of x in a task: all rows, or a multiple of 16. All weights are dequantised once for each band,
  // so a band has at least `least` rows.
  static long band(long m, long k) {
    constexpr long least = 288;
    const long most = band_bytes / (2 * k);
    return is_large(m, k) ? part_of(m, most < least ? least : most, 16) : m;
  }
  // The number of elements of k for which a band of x stays in L2.
  static long piece(long band, long k) {
    return part_of(k, most_band_bytes / (2 * band), 128);
  }
  // The length of equal parts of n: at most `most`, and a multiple of `unit`.
  static long part_of(long n, long most, long unit) {
    long parts = (n + most - 1) / most;
    return ((n + parts - 1) / parts + unit - 1) / unit * unit;
  }

  // The rows of weights of a task are a multiple of `unit`. `most` is their largest number when x has more than
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
