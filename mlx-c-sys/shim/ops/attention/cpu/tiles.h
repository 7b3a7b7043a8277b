// Operations on AMX tiles and on vectors for attention.
#pragma once

#include "ops/cpu/lanes.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include "matmul/transpose_avx512.h"

namespace mlxrs::ops {
namespace {

using matmul::paired;
using matmul::transpose;

// The floats of a tile in memory: 16 rows of 64 bytes.
constexpr long tile_floats = 256;
// side: queries and keys of a tile. depth: elements that one tile product sums.
constexpr long side = 16, depth = 32;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};

  // Configures the tiles for blocks of `columns` queries, which are columns of scores and rows of weights. With fewer
  // than 16 columns there is one block: its scores are in tiles 0 and 1, its queries in 6, its values in 2 and 3, and
  // its weights in 7.
  explicit TileConfig(int columns) {
    const int narrow[] = {0, 1, 6}, low[] = {2, 3, 7};
    for (int i : narrow) {
      row_bytes[i] = static_cast<uint16_t>(4 * columns);
    }
    for (int i : low) {
      rows[i] = static_cast<uint8_t>(columns);
    }
  }
};

// A compiler barrier: the compiler does not know that tile loads read memory.
INLINE void written() {
  asm volatile("" ::: "memory");
}

// Rotates the lanes by `by` places.
INLINE Lanes turned(Lanes x, int by) {
  Ints from;
  for (int l = 0; l < width; l++) {
    from[l] = (l + by) % width;
  }
  return cast<Lanes>(_mm512_permutexvar_ps(cast<__m512i>(from), cast<__m512>(x)));
}

// Transposes 32 keys x ROWS elements of 16 bits. Output rows are `step` floats apart, with even keys at even places.
template <int ROWS>
INLINE void store_rows(const __m512i x[ROWS], float* to, long step) {
  if constexpr (ROWS == 1) {
    _mm512_storeu_si512(to, x[0]);
  } else {
    typedef uint16_t Places __attribute__((vector_size(64)));
    for (int odd = 0; odd < 2; odd++) {
      Places places;
      for (int i = 0; i < depth; i++) {
        places[i] = static_cast<uint16_t>(2 * i + odd);
      }
      __m512i half[ROWS / 2];
#pragma GCC unroll 4
      for (int i = 0; i < ROWS / 2; i++) {
        half[i] = _mm512_permutex2var_epi16(x[2 * i], cast<__m512i>(places), x[2 * i + 1]);
      }
      store_rows<ROWS / 2>(half, to + odd * step, 2 * step);
    }
  }
}

// 2^t for t <= 0, with a relative error below 3e-6, a thousandth of bf16's rounding error. The polynomial has the least
// maximum error for 2^r with |r| <= 1/2. Subnormal results become 0, because they would take 150 cycles.
INLINE Lanes exp2_near(Lanes t) {
  __mmask16 above = _mm512_cmp_ps_mask(cast<__m512>(t), _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  __m512 n = _mm512_roundscale_ps(cast<__m512>(t), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  Lanes r = t - cast<Lanes>(n);
  Lanes p = all(9.57010128e-3f);
  p = fma(p, r, all(5.59178591e-2f));
  p = fma(p, r, all(0.240247443f));
  p = fma(p, r, all(0.693121791f));
  p = fma(p, r, all(0.999999285f));
  return cast<Lanes>(_mm512_maskz_scalef_ps(above, cast<__m512>(p), n));
}

} // namespace
} // namespace mlxrs::ops

#endif
