#include "whole.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#include <immintrin.h>

#include "small_floats.h"
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
  static constexpr int side = 6;

  template <Form FORM>
  static INLINE Codes expand(const Unpack& unpack, const uint8_t* from) {
    if constexpr (FORM == Form::eight) {
      return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    } else if constexpr (FORM == Form::any) {
      return _mm512_cvtepu8_epi16(_mm512_castsi512_si256(unpack(from, 32)));
    }
    // A byte becomes a pair.
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    __m512i low = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
    __m512i codes = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_srli_epi32(bytes, 4), 16));
    if constexpr (FORM == Form::e2m1) {
      const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(e2m1_codes)));
      return _mm512_and_si512(_mm512_shuffle_epi8(table, codes), _mm512_set1_epi16(255));
    }
    return codes;
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

  struct Pairs {
    Real even, odd;
  };
  static INLINE Pairs pairs(const uint8_t* from) {
    const __m256i places = _mm256_set1_epi16(static_cast<short>(0xbf80)), two = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    auto real = [&](__m256i high) ALWAYS_INLINE { return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(high, 1), places)); };
    return {real(_mm256_slli_epi16(two, 8)), real(two)};
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
  static INLINE float sum(Real x) {
    return _mm512_reduce_add_ps(x);
  }
};

} // namespace

const Whole* whole_tiles_vnni() {
  return &tiles_of<Tiles>;
}

const Whole* small_floats_avx512() {
  return &whole_of<SmallFloats<Tiles>, OfMxfp8>;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::Whole* mlxrs::matmul::whole_tiles_vnni() {
  return nullptr;
}
const mlxrs::matmul::Whole* mlxrs::matmul::small_floats_avx512() {
  return nullptr;
}

#endif
