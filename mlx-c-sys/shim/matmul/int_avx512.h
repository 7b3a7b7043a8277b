// Loads, scales and rounding for the kernels of int_kernels.h with AVX-512.
#pragma once

#include <immintrin.h>

#include "convert_avx512.h"
#include "int_codes.h"

namespace mlxrs::matmul {
namespace {

INLINE __mmask16 first_lanes(long n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : n > 0 ? (1u << n) - 1 : 0);
}

// The high bytes of 16-bit integers, in the upper half of each element. The low byte is from -128 to 127; the high byte
// is the rest.
INLINE __m512i high_bytes(__m512i x) {
  return _mm512_srai_epi16(_mm512_add_epi16(x, _mm512_set1_epi16(128)), 8);
}

// Elements [at, at + 16). Elements outside of the mask `there` are zero.
INLINE __m512 sixteen(Float type, const void* from, long at, __mmask16 there) {
  if (type == Float::f32) {
    return _mm512_maskz_loadu_ps(there, static_cast<const float*>(from) + at);
  }
  __m256i halves = _mm256_maskz_loadu_epi16(there, static_cast<const uint16_t*>(from) + at);
  return type == Float::f16 ? _mm512_cvtph_ps(halves) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

struct SixteenGroups {
  __m512 scale, bias;
};

// Scales and biases of groups [at, at + 16), zero where `there` is not set. e2m1 has groups of 32 with e8m0 scales
// (mxfp4), or groups of 16 with e4m3 scales (nvfp4).
template <Form FORM, int GROUP>
INLINE SixteenGroups sixteen_groups(const Weights& w, long at, __mmask16 there) {
  if constexpr (FORM == Form::e2m1) {
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, static_cast<const uint8_t*>(w.scales) + at));
    __m512 half = _mm512_mul_ps(GROUP == 16 ? from_e4m3s(bytes) : from_e8m0s(bytes), _mm512_set1_ps(0.5f));
    return {half, _mm512_mul_ps(half, _mm512_set1_ps(-e2m1_zero))};
  }
  return {sixteen(w.scale_type, w.scales, at, there), sixteen(w.scale_type, w.biases, at, there)};
}

INLINE __m256i to_bf16(__m512 x) {
#ifdef __AVX512BF16__
  __m256bh halves = _mm512_cvtneps_pbh(x);
  return reinterpret_cast<__m256i&>(halves);
#else
  __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 16), nan, _mm512_set1_epi32(0x7fc0)));
#endif
}

// Rounds the first n of 16 sums and writes them.
INLINE void write(Float type, __m512 sums, long n, void* to) {
  __m256i halves = type == Float::f16 ? _mm512_cvtps_ph(sums, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) : to_bf16(sums);
  _mm256_mask_storeu_epi16(to, first_lanes(n), halves);
}

} // namespace
} // namespace mlxrs::matmul
