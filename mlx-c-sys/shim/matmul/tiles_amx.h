// How AMX's tiles are laid out.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace mlxrs::matmul {
namespace {

// How far apart the rows of weights of a tile are, which come from so many rows: each from a stretch of memory of its own, which is
// read faster. The number is odd, because 16 rows that lie a power of two apart are of one set of the first cache, which holds 12.
inline long rows_apart(long rows) {
  const long apart = rows / 16;
  return apart > 1 && apart % 2 == 0 ? apart - 1 : apart;
}

// As long as one of these lives, all tiles have 16 rows of 64 bytes; of fewer columns of 32 bits have the tiles 0 and 5.
struct Configuration {
  explicit Configuration(long columns = 16) {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } tiles;
    tiles.row_bytes[0] = tiles.row_bytes[5] = static_cast<uint16_t>(4 * columns);
    // GCC 12 believes that only the first eight bytes are read.
    asm volatile("" ::"r"(&tiles) : "memory");
    _tile_loadconfig(&tiles);
  }
  ~Configuration() {
    _tile_release();
  }
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;
};

} // namespace
} // namespace mlxrs::matmul
