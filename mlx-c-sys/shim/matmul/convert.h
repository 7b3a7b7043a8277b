// Conversions between floating-point types by bit operations. Files for different instruction sets include this header,
// so all functions have internal linkage.
#pragma once

#include <cstdint>
#include <cstring>

namespace mlxrs::matmul {
namespace {

inline __attribute__((always_inline)) float as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline __attribute__((always_inline)) uint32_t as_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline __attribute__((always_inline)) float from_bf16(uint16_t x) {
  return as_float(static_cast<uint32_t>(x) << 16);
}
// Rounds to the nearest, ties to even. NaN stays NaN.
inline __attribute__((always_inline)) uint16_t to_bf16(float x) {
  uint32_t bits = as_bits(x);
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

// Shifts the bits to their places and corrects the exponent's bias with a multiplication, which is exact for subnormal
// numbers too.
inline __attribute__((always_inline)) float from_f16(uint16_t x) {
  uint32_t magnitude = x & 0x7fff;
  uint32_t bits = as_bits(as_float(magnitude << 13) * 0x1p112f);
  bits = magnitude >= 0x7c00 ? bits | 0x7f800000 : bits;
  return as_float(bits | static_cast<uint32_t>(x & 0x8000) << 16);
}
inline __attribute__((always_inline)) uint16_t to_f16(float x) {
  uint32_t bits = as_bits(x), sign = bits & 0x80000000;
  bits ^= sign;
  // Below the smallest normal number, adding 0.5 puts the last bit of f16 at the last bit of f32, which rounds.
  uint32_t small = as_bits(as_float(bits) + 0.5f) - 0x3f000000;
  uint32_t normal = (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
  uint32_t huge = bits > 0x7f800000 ? 0x7e00 : 0x7c00;
  uint32_t half = bits < 0x38800000 ? small : bits >= 0x477ff000 ? huge : normal;
  return static_cast<uint16_t>(half | sign >> 16);
}

// e4m3: sign, 4 bits of exponent, 3 bits of mantissa.
inline __attribute__((always_inline)) float from_e4m3(uint8_t x) {
  float magnitude = as_float(static_cast<uint32_t>(x & 0x7f) << 20) * 0x1p120f;
  return as_float(as_bits(magnitude) | static_cast<uint32_t>(x & 0x80) << 24);
}
// e8m0: a power of two. Code 0 is 2^-127, a subnormal number.
inline __attribute__((always_inline)) float from_e8m0(uint8_t x) {
  return x == 0 ? 0x1p-127f : as_float(static_cast<uint32_t>(x) << 23);
}

inline void to_bf16(const float* from, long n, uint16_t* to) {
  for (long i = 0; i < n; i++) {
    to[i] = to_bf16(from[i]);
  }
}
inline void to_f16(const float* from, long n, uint16_t* to) {
  for (long i = 0; i < n; i++) {
    to[i] = to_f16(from[i]);
  }
}

} // namespace
} // namespace mlxrs::matmul
