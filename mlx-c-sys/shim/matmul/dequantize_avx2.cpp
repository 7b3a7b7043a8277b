// Dequantisation with AVX2.
#include "dequantize_portable.h"

#ifdef __AVX2__
#include <immintrin.h>

#include "unpack_avx2.h"

namespace mlxrs::matmul {
namespace {

#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE

// Converts dense rows of 16-bit floats.
template <__m256 (*eight)(const void*)>
void dense_to_f32(const Panel& p, long k, long k_end, float* to, long ld) {
  const uint16_t* from = static_cast<const uint16_t*>(p.w.data) + p.row * p.w.k;
  for (long r = 0; r < p.rows; r++, from += p.w.k, to += ld) {
    long at = k;
    for (; at + 8 <= k_end; at += 8) {
      if (at % 32 == 0) {
        __builtin_prefetch(from + at + p.rows * p.w.k, 0, 2);
      }
      _mm256_storeu_ps(to + at - k, eight(from + at));
    }
    if (at < k_end) {
      alignas(16) uint16_t last[8] = {};
      float values[8];
      std::memcpy(last, from + at, (k_end - at) * sizeof(uint16_t));
      _mm256_storeu_ps(values, eight(last));
      std::memcpy(to + at - k, values, (k_end - at) * sizeof(float));
    }
  }
}

// Converts eight codes to numbers. A 4-bit code is a sign and an index into a table of magnitudes; an 8-bit code is
// e4m3 (see convert.h).
template <Coding CODING>
INLINE __m256 value_of(__m256i codes) {
  if constexpr (CODING == Coding::affine) {
    return _mm256_cvtepi32_ps(codes);
  } else if constexpr (CODING == Coding::mxfp8) {
    __m256i bits = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(0x7f)), 20);
    __m256 magnitude = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(0x80)), 24);
    return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
  } else {
    __m256 magnitude = _mm256_permutevar8x32_ps(_mm256_loadu_ps(e2m1), codes);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(8)), 28);
    return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
  }
}

// Converts rows of codes of BITS bits. BITS 0 stands for any other number of bits.
template <Coding CODING, int BITS>
void packed_to_f32(const Panel& p, long k, long k_end, float* to, long ld) {
  const Weights& w = p.w;
  const Sixteen unpack(w.bits);
  const uint8_t* from = static_cast<const uint8_t*>(w.data) + p.row * w.row_bytes();
  const float *scales = p.scales, *biases = p.biases;
  for (long r = 0; r < p.rows; r++, from += w.row_bytes(), to += ld, scales += p.groups, biases += p.groups) {
    float* y = to;
    for (long at = k; at < k_end; at += w.group) {
      const long g = at / w.group - p.group;
      const __m256 scale = _mm256_set1_ps(scales[g]);
      const __m256 bias = CODING == Coding::affine ? _mm256_set1_ps(biases[g]) : _mm256_setzero_ps();
      for (long i = at; i < at + w.group; i += 16, y += 16) {
        // Copies the last codes of a row, because the memory may end there.
        const uint8_t* here = from + i * w.bits / 8;
        const long left = (w.k - i) * w.bits / 8;
        uint8_t last[16];
        if (BITS == 0 && left < 16) {
          std::memcpy(last, here, left);
          here = last;
        }
        __m256i codes = BITS == 8 ? Sixteen::of_bytes(here) : BITS == 4 ? Sixteen::of_nibbles(here) : unpack(here);
        auto put = [&](__m128i eight, float* to) ALWAYS_INLINE {
          __m256 scaled = _mm256_mul_ps(value_of<CODING>(_mm256_cvtepi16_epi32(eight)), scale);
          // The product is rounded before the addition, as in the portable loops.
          _mm256_storeu_ps(to, CODING == Coding::affine ? _mm256_add_ps(scaled, bias) : scaled);
        };
        put(_mm256_castsi256_si128(codes), y);
        put(_mm256_extracti128_si256(codes, 1), y + 8);
      }
    }
  }
}

void panel_to_f32(const Panel& p, long k, long k_end, float* to, long ld) {
  switch (p.w.coding) {
    case Coding::f32:
      return rows_to_f32(p, k, k_end, to, ld);
    case Coding::bf16:
      return dense_to_f32<eight_bf16>(p, k, k_end, to, ld);
    case Coding::f16:
      return dense_to_f32<eight_f16>(p, k, k_end, to, ld);
    case Coding::affine:
      return p.w.bits == 4 ? packed_to_f32<Coding::affine, 4>(p, k, k_end, to, ld)
          : p.w.bits == 8  ? packed_to_f32<Coding::affine, 8>(p, k, k_end, to, ld)
                           : packed_to_f32<Coding::affine, 0>(p, k, k_end, to, ld);
    case Coding::mxfp4:
    case Coding::nvfp4:
      return packed_to_f32<Coding::mxfp4, 4>(p, k, k_end, to, ld);
    case Coding::mxfp8:
      return packed_to_f32<Coding::mxfp8, 8>(p, k, k_end, to, ld);
  }
}

constexpr Dequantizer dequantizer{panel_to_f32, rows_to_bf16, [](const Weights&) { return 1; }, scales_to_f32};

} // namespace

const Dequantizer* dequantize_avx2() {
  return &dequantizer;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::Dequantizer* mlxrs::matmul::dequantize_avx2() {
  return &plain;
}

#endif
