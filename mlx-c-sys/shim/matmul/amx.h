// Products in bf16 on AMX's tiles.
//
// A tile register has 16 rows of 64 bytes. TDPBF16PS adds to 16 x 16 sums the products of 16 rows of weights (32 elements
// of k each, as they lie in memory) and 16 rows of x, which must lie as pairs of k: 16 x 16 x 32 products in 16 cycles.
// Each element is summed pair after pair, in the order of k, whatever the other rows of the tile are.
#pragma once

#include "expand.h"

namespace mlxrs::matmul {

struct Amx {
  // Tiles along k, of 32 each; `dealt` is what Expander::dealt says of the weights.
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
  long (*scratch_size)(const Product& p, const Weights& w, const Expander& expander, long rows);
  void (*rows)(
      const Product& p, const Weights& w, const Expander& expander, const uint16_t* packed, long row, long row_end,
      void* scratch);

  // The part of x that stays in the second cache while weights go by, in bytes of packed x.
  static constexpr long band_bytes = 5 << 18;

  // What rows a task should have a multiple of. With up to `some` rows of x it reads its weights in the order of memory: it should
  // have as many as there are. So should it where all of x does not stay in the second cache, because it reads x again.
  static constexpr long unit = 64, some = 128;
  static bool is_large(long m, long k) {
    return 2 * m * k > band_bytes;
  }
  // The most rows of a task with more than `some` rows of x.
  static long most(long m, long k) {
    return is_large(m, k) ? 1024 : 256;
  }
};

// Null where the compiler does not know the instructions.
const Amx* amx();

} // namespace mlxrs::matmul
