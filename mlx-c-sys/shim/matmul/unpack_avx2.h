// Unpacks codes of 1 to 8 bits, and widens 16-bit floats, with AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace mlxrs::matmul {
namespace {

// Eight 16-bit floats as f32.
inline __attribute__((always_inline)) __m256 eight_bf16(const void* from) {
  __m128i halves = _mm_loadu_si128(static_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline __attribute__((always_inline)) __m256 eight_f16(const void* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}

// The codes of 16 elements as 16-bit integers. Each lane gets the two bytes that contain its code. A multiplication
// shifts the code to the upper end of the lane, and a shift moves it down.
struct Sixteen {
  __m256i bytes, factors;
  __m128i down;
  int bits;

  explicit Sixteen(int bits) : down(_mm_cvtsi32_si128(16 - bits)), bits(bits) {
    alignas(32) uint8_t at[32];
    alignas(32) uint16_t factor[16];
    for (int i = 0; i < 16; i++) {
      at[2 * i] = static_cast<uint8_t>(i * bits / 8);
      at[2 * i + 1] = static_cast<uint8_t>(i * bits / 8 + 1);
      factor[i] = static_cast<uint16_t>(1 << (16 - bits - i * bits % 8));
    }
    bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
    factors = _mm256_load_si256(reinterpret_cast<const __m256i*>(factor));
  }

  // Codes of fewer than 8 bits. It reads 16 bytes, which may be more than the codes.
  inline __attribute__((always_inline)) __m256i operator()(const uint8_t* from) const {
    __m256i raw = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm256_srl_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(raw, bytes), factors), down);
  }

  // Codes of 8 bits each.
  static inline __attribute__((always_inline)) __m256i of_bytes(const uint8_t* from) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  // Codes of 4 bits. Each byte holds two of them.
  static inline __attribute__((always_inline)) __m256i of_nibbles(const uint8_t* from) {
    __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi32(15)), high = _mm256_srli_epi32(bytes, 4);
    return _mm256_or_si256(low, _mm256_slli_epi32(high, 16));
  }
};

} // namespace
} // namespace mlxrs::matmul
