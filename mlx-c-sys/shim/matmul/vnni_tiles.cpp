#include "whole.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#include <immintrin.h>

#include "turn.h"
#include "unpack.h"
#include "whole_tiles.h"

namespace mlxrs::matmul {
namespace {

struct Tiles {
  using Real = __m512;
  using Sums = __m512i;
  using Codes = __m512i;
  using Unpack = matmul::Unpack;
  static constexpr long width = 16;
  static constexpr int side = 12;

  template <int BITS>
  static INLINE Codes expand(const Unpack& unpack, const uint8_t* from) {
    if constexpr (BITS == 8) {
      return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    } else if constexpr (BITS == 0) {
      return _mm512_cvtepu8_epi16(_mm512_castsi512_si256(unpack(from, 32)));
    }
    // A byte becomes a pair.
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    __m512i low = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
    return _mm512_or_si512(low, _mm512_slli_epi32(_mm512_srli_epi32(bytes, 4), 16));
  }
  static INLINE void turn(Codes (&rows)[16]) {
    matmul::turn(rows);
  }

  static INLINE Codes bits(Real x) {
    return _mm512_castps_si512(x);
  }
  static INLINE Real real(Codes x) {
    return _mm512_castsi512_ps(x);
  }
  static INLINE Sums none_yet() {
    return _mm512_setzero_si512();
  }
  static INLINE Codes pair(const void* from) {
    int both;
    std::memcpy(&both, from, sizeof both);
    return _mm512_set1_epi32(both);
  }
  static INLINE Codes load(const int16_t* from) {
    return _mm512_loadu_si512(from);
  }
  static INLINE void store(int16_t* to, Codes x) {
    _mm512_storeu_si512(to, x);
  }
  static INLINE Sums add(Sums sums, Codes x, Codes w) {
    sums = _mm512_dpwssd_epi32(sums, x, w);
    // Else GCC moves each sum twice for every product.
    asm("" : "+v"(sums));
    return sums;
  }

  static INLINE Real zero() {
    return _mm512_setzero_ps();
  }
  static INLINE Real load(const float* from) {
    return _mm512_loadu_ps(from);
  }
  static INLINE Real from_bf16(const void* from) {
    __m256i halves = _mm256_loadu_si256(static_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static INLINE Real from_f16(const void* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  static INLINE void store(float* to, Real x) {
    _mm512_storeu_ps(to, x);
  }
  static INLINE Real all(float x) {
    return _mm512_set1_ps(x);
  }
  static INLINE Real from(Sums x) {
    return _mm512_cvtepi32_ps(x);
  }
  static INLINE Real multiply(Real x, Real y) {
    return _mm512_mul_ps(x, y);
  }
  static INLINE Real fma(Real x, Real y, Real z) {
    return _mm512_fmadd_ps(x, y, z);
  }
};

} // namespace

const Whole* whole_tiles_vnni() {
  return &tiles_of<Tiles>;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::Whole* mlxrs::matmul::whole_tiles_vnni() {
  return nullptr;
}

#endif
