// Products in bf16 on AMX's tiles.
//
// A tile register has 16 rows of 64 bytes. TDPBF16PS adds to 16 x 16 sums the products of 16 rows of weights (32 elements
// of k each, as they lie in memory) and 16 rows of x, which must lie as pairs of k: 16 x 16 x 32 products in 16 cycles.
// Each element is summed pair after pair, in the order of k, whatever the other rows of the tile are.
#pragma once

#include "dequantize.h"

namespace mlxrs::matmul {

struct Bf16Tiles {
  // Tiles along k, of 32 each; `dealt` is what Dequantizer::dealt says of the weights.
  static long steps(long k, int dealt) {
    return dealt > 1 ? (k + 63) / 64 * 2 : (k + 31) / 32;
  }
  // Elements of x when packed: blocks of 16 rows of x, each `steps` tiles of 16 pairs of k x 16 rows.
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

  // How many bytes of x stay in L2 while weights are read: easily, and at most.
  static constexpr long band_bytes = 5 << 18, most_band_bytes = 13 << 17;
  static bool is_large(long m, long k) {
    return 2 * m * k > band_bytes;
  }
  // The rows of x of a task: all, or a multiple of 16. All weights are dequantised once for each such band, which has enough rows for that
  // to pay.
  static long band(long m, long k) {
    constexpr long least = 288;
    const long most = band_bytes / (2 * k);
    return is_large(m, k) ? part_of(m, most < least ? least : most, 16) : m;
  }
  // For how many elements of k a band of x stays in L2.
  static long piece(long band, long k) {
    return part_of(k, most_band_bytes / (2 * band), 128);
  }
  // The length of equal parts of n: at most `most`, and a multiple of `unit`.
  static long part_of(long n, long most, long unit) {
    long parts = (n + most - 1) / most;
    return ((n + parts - 1) / parts + unit - 1) / unit * unit;
  }

  // What the rows of weights of a task are a multiple of, and the most of them with more than `memory_bound_rows` rows of x.
  static constexpr long unit = 64;
  static long most(long m, long k) {
    constexpr long some_rows = 256, waiting = 512, all = 1L << 40;
    return !is_large(m, k) ? some_rows : piece(band(m, k), k) < k ? waiting : all;
  }
};

// Null where the compiler does not know the instructions.
const Bf16Tiles* bf16_tiles_amx();

struct Job;

void by_bf16_tiles(const Product& p, const Job& job, const Bf16Tiles& tiles, const Dequantizer& dequantizer);

} // namespace mlxrs::matmul
