// AMX tile operations for bf16: sums of products, and rounding and writing of the sums.
//
// Measured (docs/design/cpu-kernels.md): the unit that stores tiles goes to sleep after about 2,000 cycles without a store and
// takes 700 cycles to wake up; so does the unit that multiplies tiles. Loops that run longer therefore store a tile to
// `nowhere` from time to time.
#pragma once

#include <immintrin.h>

#include "tiles_amx.h"
#include "matmul.h"
#include "transpose_avx512.h"

namespace mlxrs::matmul {
namespace {

#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE

struct alignas(64) Tile {
  float sums[16][16];
};

INLINE long smaller(long a, long b) {
  return a < b ? a : b;
}

// The rows of x in a tile. With up to 8 rows, x takes half of L1, and the weights pass through the rest.
INLINE long columns_of(long m) {
  return m <= 8 ? 8 : 16;
}

template <int SUMS>
INLINE void zero_sums() {
  _tile_zero(0);
  if constexpr (SUMS > 1) _tile_zero(1);
  if constexpr (SUMS > 2) _tile_zero(2);
  if constexpr (SUMS > 3) _tile_zero(3);
  if constexpr (SUMS > 4) _tile_zero(4);
  if constexpr (SUMS > 5) _tile_zero(5);
}
// Loads stored sums. They bypass L1, because they are not needed again.
template <int SUMS>
INLINE void load_sums(const Tile* t) {
  _tile_stream_loadd(0, t, 64);
  if constexpr (SUMS > 1) _tile_stream_loadd(1, t + 1, 64);
  if constexpr (SUMS > 2) _tile_stream_loadd(2, t + 2, 64);
  if constexpr (SUMS > 3) _tile_stream_loadd(3, t + 3, 64);
  if constexpr (SUMS > 4) _tile_stream_loadd(4, t + 4, 64);
  if constexpr (SUMS > 5) _tile_stream_loadd(5, t + 5, 64);
}
template <int SUMS>
INLINE void store_sums(Tile* t) {
  _tile_stored(0, t, 64);
  if constexpr (SUMS > 1) _tile_stored(1, t + 1, 64);
  if constexpr (SUMS > 2) _tile_stored(2, t + 2, 64);
  if constexpr (SUMS > 3) _tile_stored(3, t + 3, 64);
  if constexpr (SUMS > 4) _tile_stored(4, t + 4, 64);
  if constexpr (SUMS > 5) _tile_stored(5, t + 5, 64);
}

// Which weights are prefetched, after the end of the rows: none, the memory after each row, or the next 16 rows where
// rows are adjacent.
enum class Ahead { no, stretches, side_by_side };

// Loads a tile of x. It bypasses L1 if prefetched weights need L1 and x is too large to stay there. This is a macro
// because the tile's number is part of the instruction.
#define LOAD_X(tile, from, row)                 \
  if constexpr (AHEAD == Ahead::no || X == 1) { \
    _tile_loadd(tile, from, row);               \
  } else {                                      \
    _tile_stream_loadd(tile, from, row);        \
  }

// Adds the products of one tile of weights and X tiles of x to sums 0 to X - 1. Tiles of x are `block` elements apart
// and have room for W rows of x.
template <int X, int W, Ahead AHEAD>
INLINE void tiles(const uint16_t* w, long row, const uint16_t* x, long block, long steps, Tile* nowhere) {
  for (long s = 0; s < steps; s++, w += 32, x += 32 * W) {
    _tile_loadd(4, w, row);
    LOAD_X(5, x, 4 * W);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (X > 1) {
      LOAD_X(6, x + block, 64);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (X > 2) {
      LOAD_X(7, x + 2 * block, 64);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (X > 3) {
      LOAD_X(5, x + 3 * block, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
    if constexpr (AHEAD != Ahead::no) {
      constexpr long ahead = 8;
      const bool is_end = AHEAD == Ahead::side_by_side && s + ahead >= steps;
      const char* next = reinterpret_cast<const char*>(w + ahead * 32) + (is_end ? 15 * row : 0);
      for (long i = 0; i < 16; i++) {
        _mm_prefetch(next + i * row, _MM_HINT_T0);
      }
      if (s % 4 == 3) {
        _tile_stored(5, nowhere, 64);
      }
    }
  }
}
#undef LOAD_X

// Adds the products of two tiles of weights and X tiles of x to sums 0 to 2 X - 1. Tiles of x are `block` elements
// apart. They are loaded from L2 and bypass L1, where the weights stay.
template <int X>
INLINE void multiply(const uint16_t* w, long ld, const uint16_t* x, long block, long steps, Tile* nowhere) {
  const uint16_t* w1 = w + 16 * ld;
  long row = 2 * ld;
  for (long s = 0; s < steps; s++, w += 32, w1 += 32, x += 512) {
    _tile_loadd(6, w, row);
    _tile_stream_loadd(7, x, 64);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, w1, row);
    _tile_dpbf16ps(1, 6, 7);
    if constexpr (X > 1) {
      _tile_stream_loadd(7, x + block, 64);
      _tile_dpbf16ps(3, 6, 7);
      _tile_loadd(6, w, row);
      _tile_dpbf16ps(2, 6, 7);
    }
    if constexpr (X > 2) {
      _tile_stream_loadd(7, x + 2 * block, 64);
      _tile_dpbf16ps(4, 6, 7);
      _tile_loadd(6, w1, row);
      _tile_dpbf16ps(5, 6, 7);
    }
    if (s % 8 == 7) {
      _tile_stored(7, nowhere, 64);
    }
  }
}

// Rounds sums to bf16 and writes them to y[first_row + row of x][column + row of weights]. `sums` has up to 16 rows of
// weights, `distance` apart, for 16 rows of x.
void write(const Product& p, const float* sums, long distance, long first_row, long column, long columns) {
  long rows = smaller(16, p.m - first_row);
  auto to = [&](long i) ALWAYS_INLINE { return static_cast<uint16_t*>(p.y[first_row + i]) + column; };
  __mmask16 there = static_cast<__mmask16>((1u << columns) - 1);
  if (rows <= 3) {
    const __m512i at = _mm512_mullo_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(static_cast<int>(distance)));
    for (long i = 0; i < rows; i++) {
      __m256bh half = _mm512_cvtneps_pbh(_mm512_i32gather_ps(at, sums + i, 4));
      _mm256_mask_storeu_epi16(to(i), there, reinterpret_cast<__m256i&>(half));
    }
    return;
  }
  __m512i r[16];
  for (int i = 0; i < 16; i++) {
    r[i] = _mm512_load_si512(sums + i * distance);
  }
  transpose(r);
  for (long i = 0; i < rows; i++) {
    __m256bh half = _mm512_cvtneps_pbh(_mm512_castsi512_ps(r[i]));
    _mm256_mask_storeu_epi16(to(i), there, reinterpret_cast<__m256i&>(half));
  }
}

void write(const Product& p, const Tile& tile, long first_row, long column, long columns) {
  write(p, tile.sums[0], 16, first_row, column, columns);
}

// The same for two adjacent tiles with 16 rows of weights each.
void write_pair(const Product& p, const Tile* tiles, long first_row, long column) {
  // Both tiles are rounded before the transposition, so that two rows of weights are one row of pairs.
  __m512i r[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    const float* two = tiles[i / 8].sums[i % 8 * 2];
    __m512bh both = _mm512_cvtne2ps_pbh(_mm512_load_ps(two + 16), _mm512_load_ps(two));
    r[i] = paired(reinterpret_cast<__m512i&>(both));
  }
  transpose(r);
  for (long i = 0; i < smaller(16, p.m - first_row); i++) {
    uint16_t* to = static_cast<uint16_t*>(p.y[first_row + i]) + column;
    // A store of a whole cache line can avoid reading the line first. An _mm_sfence must follow.
    if (!p.is_read && reinterpret_cast<uintptr_t>(to) % 64 == 0) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), r[i]);
    } else {
      _mm512_storeu_si512(to, r[i]);
    }
  }
}

} // namespace
} // namespace mlxrs::matmul
