// Unpacks codes of 1 to 8 bits, with VBMI.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace mlxrs::matmul {
namespace {

inline __attribute__((always_inline)) __mmask64 first_bytes(long n) {
  return n >= 64 ? ~0ull : n > 0 ? (1ull << n) - 1 : 0;
}

// Unpacks the codes of 64 elements from a bit stream. Each 64-bit lane gets the bytes that contain its eight elements,
// and VPMULTISHIFTQB extracts them.
struct Unpack {
  __m512i bytes, shifts, mask;
  int bits;

  explicit Unpack(int bits) : bits(bits) {
    alignas(64) uint8_t at[64], shift[64];
    for (int lane = 0; lane < 8; lane++) {
      for (int i = 0; i < 8; i++) {
        at[8 * lane + i] = static_cast<uint8_t>(i < bits ? lane * bits + i : 0);
        shift[8 * lane + i] = static_cast<uint8_t>(i * bits);
      }
    }
    bytes = _mm512_load_si512(at);
    shifts = _mm512_load_si512(shift);
    mask = _mm512_set1_epi8(static_cast<char>((1 << bits) - 1));
  }

  // The first `n` elements; the others are zero.
  inline __attribute__((always_inline)) __m512i operator()(const uint8_t* from, long n) const {
    __m512i raw = _mm512_maskz_loadu_epi8(first_bytes(n * bits / 8), from);
    if (bits == 8) {
      return raw;
    }
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(bytes, raw)), mask);
  }
};

} // namespace
} // namespace mlxrs::matmul
