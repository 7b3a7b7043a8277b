// Converts vectors of 16 small floating-point codes, one in each 32-bit lane, to f32.
#pragma once

#include <immintrin.h>

namespace mlxrs::matmul {
namespace {

// e4m3: the bits are shifted to their places, and a multiplication corrects the exponent's bias.
inline __attribute__((always_inline)) __m512 from_e4m3s(__m512i codes) {
  __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(codes, _mm512_set1_epi32(0x7f)), 20);
  __m512i sign = _mm512_slli_epi32(_mm512_and_si512(codes, _mm512_set1_epi32(0x80)), 24);
  __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p120f));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(value), sign));
}

// e8m0: a power of two. Code 0 is 2^-127, a subnormal number.
inline __attribute__((always_inline)) __m512 from_e8m0s(__m512i codes) {
  __mmask16 least = _mm512_testn_epi32_mask(codes, codes);
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(_mm512_slli_epi32(codes, 23), least, _mm512_set1_epi32(0x400000)));
}

} // namespace
} // namespace mlxrs::matmul
