// The sgemm kernels with AVX2 and FMA.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace mlxrs::sgemm {
namespace {

struct Avx2 {
  using type = __m256;
  static constexpr int width = 8, rows = 3, cols = 4, side = 4, wide = 3;

  static type zero() {
    return _mm256_setzero_ps();
  }
  static type set1(float x) {
    return _mm256_set1_ps(x);
  }
  static type load(const float* p) {
    return _mm256_loadu_ps(p);
  }
  static type load(const Bf16* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p) + ahead, _MM_HINT_T0);
    __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static type load(const F16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Four four(const F16* p) {
    return reinterpret_cast<Four>(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static type load_part(const float* p, long n) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lanes));
  }
  static void store(float* p, type x) {
    _mm256_storeu_ps(p, x);
  }
  static type fma(type x, type y, type z) {
    return _mm256_fmadd_ps(x, y, z);
  }
  static type add(type x, type y) {
    return _mm256_add_ps(x, y);
  }
  static Four sum4(type a, type b, type c, type d) {
    auto halves = [](type x, type y) {
      return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
    };
    type ab = halves(a, b), cd = halves(c, d);
    // The low half has two elements of a and two of c; the high half has two of b and two of d.
    type pairs = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    pairs = _mm256_add_ps(pairs, _mm256_permute_ps(pairs, 0xb1));
    __m128 ac = _mm256_castps256_ps128(pairs), bd = _mm256_extractf128_ps(pairs, 1);
    return reinterpret_cast<Four>(_mm_movelh_ps(_mm_unpacklo_ps(ac, bd), _mm_unpackhi_ps(ac, bd)));
  }
};

constexpr Kernels kernels = kernels_of<Avx2>("avx2");

} // namespace

const Kernels* avx2() {
  return &kernels;
}

} // namespace mlxrs::sgemm

#else

const mlxrs::sgemm::Kernels* mlxrs::sgemm::avx2() {
  return nullptr;
}

#endif
