// A stand-in for CUDA's header of 16-bit numbers, so that device code without threads runs on the
// CPU. It has only what shim/cuda/codes.cuh and its includes need. Numbers are rounded to nearest,
// ties to even, as on the device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __shared__ static

struct uint4 {
  uint32_t x, y, z, w;
};
struct Index {
  unsigned x, y, z;
};
constexpr Index threadIdx{};

inline void __syncthreads() {}
template <class T>
T __shfl_xor_sync(unsigned, T x, int) {
  return x;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
// Each nibble of `which` names a byte of the eight in x and y.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t which) {
  uint64_t all = static_cast<uint64_t>(y) << 32 | x;
  uint32_t to = 0;
  for (int i = 0; i < 4; i++) {
    to |= static_cast<uint32_t>(all >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return to;
}

// A number with an exponent of `Exponent` bits and a mantissa of `Mantissa` bits.
template <int Exponent, int Mantissa>
struct Small {
  uint16_t bits;

  static constexpr int bias = (1 << (Exponent - 1)) - 1, infinite = ((1 << Exponent) - 1) << Mantissa;

  static Small of(double x) {
    auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
    if (std::isnan(x)) {
      return {static_cast<uint16_t>(infinite | 1 << (Mantissa - 1))};
    }
    if (x == 0) {
      return {sign};
    }
    int exponent = 0;
    std::frexp(x, &exponent);
    int last = std::max(exponent - 1, 1 - bias) - Mantissa;
    double mantissa = std::nearbyint(std::ldexp(std::fabs(x), -last));
    double rounded = std::ldexp(mantissa, last);
    if (!(rounded < std::ldexp(2.0, bias))) {
      return {static_cast<uint16_t>(sign | infinite)};
    }
    // A mantissa with its leading bit adds one to the exponent; one without is subnormal.
    int code = static_cast<int>(mantissa) + (last - (1 - bias - Mantissa)) * (1 << Mantissa);
    return {static_cast<uint16_t>(sign | code)};
  }
  double value() const {
    int code = bits & 0x7fff, exponent = code >> Mantissa, mantissa = code & ((1 << Mantissa) - 1);
    double x = exponent == 0 ? std::ldexp(mantissa, 1 - bias - Mantissa)
                             : std::ldexp(mantissa + (1 << Mantissa), exponent - bias - Mantissa);
    if (code >= infinite) {
      x = code == infinite ? HUGE_VAL : NAN;
    }
    return (bits & 0x8000) != 0 ? -x : x;
  }
};

template <class T>
struct Two {
  T x, y;
};
// The functions round once: a - b, and a b + c.
template <class T>
Two<T> __hsub2(Two<T> a, Two<T> b) {
  return {T::of(a.x.value() - b.x.value()), T::of(a.y.value() - b.y.value())};
}
template <class T>
Two<T> __hfma2(Two<T> a, Two<T> b, Two<T> c) {
  return {T::of(std::fma(a.x.value(), b.x.value(), c.x.value())), T::of(std::fma(a.y.value(), b.y.value(), c.y.value()))};
}

using __half = Small<5, 10>;
using __half2 = Two<__half>;
inline float __half2float(__half x) {
  return static_cast<float>(x.value());
}
inline __half __float2half_rn(float x) {
  return __half::of(x);
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__half::of(x), __half::of(y)};
}
inline __half2 __half2half2(__half x) {
  return {x, x};
}
