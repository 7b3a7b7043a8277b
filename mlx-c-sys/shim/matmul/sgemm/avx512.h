// AVX-512F vectors for the kernels of tile.h.
#pragma once

#include <immintrin.h>

#include "tile.h"

namespace mlxrs::sgemm {
namespace {

struct Avx512 {
  using type = __m512;
  static constexpr int width = 16, rows = 4, cols = 6, side = 8, wide = 3;

  static type zero() {
    return _mm512_setzero_ps();
  }
  static type set1(float x) {
    return _mm512_set1_ps(x);
  }
  static type load(const float* p) {
    return _mm512_loadu_ps(p);
  }
  static type load(const Bf16* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p) + ahead, _MM_HINT_T0);
    __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static type load(const F16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Four four(const F16* p) {
    __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return reinterpret_cast<Four>(_mm512_castps512_ps128(_mm512_cvtph_ps(_mm256_castsi128_si256(halves))));
  }
  static type load_part(const float* p, long n) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
  }
  static void store(float* p, type x) {
    _mm512_storeu_ps(p, x);
  }
  static type fma(type x, type y, type z) {
    return _mm512_fmadd_ps(x, y, z);
  }
  static type add(type x, type y) {
    return _mm512_add_ps(x, y);
  }
  static Four sum4(type a, type b, type c, type d) {
    // Adds the halves of two vectors: quarters 0 and 1 of each plus quarters 2 and 3.
    auto halves = [](type x, type y) {
      return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    };
    type ab = halves(a, b), cd = halves(c, d);
    // Now one quarter for each of the four vectors.
    type sums = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0x4e));
    sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0xb1));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    return reinterpret_cast<Four>(_mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, sums)));
  }
};

} // namespace
} // namespace mlxrs::sgemm
