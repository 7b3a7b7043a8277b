// How AMX's tiles are laid out, as long as one of these lives.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace mlxrs::matmul {
namespace {

// All tiles have 16 rows of 64 bytes; of fewer columns of 32 bits have the tiles 0 and 5.
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
