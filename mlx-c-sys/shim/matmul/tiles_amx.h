// The layout and configuration of AMX tiles.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace mlxrs::matmul {
namespace {

// The distance between the rows of weights of a tile, for `rows` rows in all. Each row is then in a long contiguous
// range of memory of its own, which is read faster. The distance is odd, because 16 rows a power of two apart fall into
// one set of L1, which has 12 ways.
inline long rows_apart(long rows) {
  const long apart = rows / 16;
  return apart > 1 && apart % 2 == 0 ? apart - 1 : apart;
}

// Configures the tiles while it exists: all tiles have 16 rows of 64 bytes, except that tiles 0 and 5 have `columns`
// columns of 32 bits.
struct Configuration {
  explicit Configuration(long columns = 16) {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } tiles;
    tiles.row_bytes[0] = tiles.row_bytes[5] = static_cast<uint16_t>(4 * columns);
    // Without this, GCC 12 assumes that only the first eight bytes are read.
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
