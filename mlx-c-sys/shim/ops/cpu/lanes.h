// SIMD vectors of f32 for the instruction set that a file is compiled for, with loads and stores for each element type.
// Each instruction set's file includes this header. All functions have internal linkage and call nothing of the
// standard library, so the linker cannot use a function compiled for one instruction set in code for another.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace mlxrs::ops {
namespace {

#if defined(__AVX512F__)
constexpr long width = 16;
#elif defined(__AVX2__)
constexpr long width = 8;
#else
constexpr long width = 4;
#endif

typedef float Lanes __attribute__((vector_size(4 * width)));
typedef int32_t Ints __attribute__((vector_size(4 * width)));
typedef uint32_t Bits __attribute__((vector_size(4 * width)));
typedef uint16_t Shorts __attribute__((vector_size(2 * width)));

// 16-bit elements, as types of their own.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

template <class To, class From>
INLINE To cast(From x) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}

INLINE Lanes all(float x) {
  return x - Lanes{};
}
INLINE Ints all(int32_t x) {
  return x - Ints{};
}
// x where `mask` is set, else y.
INLINE Lanes choose(Ints mask, Lanes x, Lanes y) {
  return mask ? x : y;
}
INLINE Lanes larger(Lanes x, Lanes y) {
  return choose(x > y, x, y);
}
INLINE Lanes smaller(Lanes x, Lanes y) {
  return choose(x < y, x, y);
}
INLINE long least(long a, long b) {
  return a < b ? a : b;
}
INLINE long most(long a, long b) {
  return a > b ? a : b;
}

// x y + z, rounded once where the instruction set has FMA.
INLINE Lanes fma(Lanes x, Lanes y, Lanes z) {
#if defined(__AVX512F__)
  return cast<Lanes>(_mm512_fmadd_ps(cast<__m512>(x), cast<__m512>(y), cast<__m512>(z)));
#elif defined(__FMA__)
  return cast<Lanes>(_mm256_fmadd_ps(cast<__m256>(x), cast<__m256>(y), cast<__m256>(z)));
#elif defined(__aarch64__)
  return cast<Lanes>(vfmaq_f32(cast<float32x4_t>(z), cast<float32x4_t>(x), cast<float32x4_t>(y)));
#else
  return x * y + z;
#endif
}

INLINE Lanes load(const float* p) {
  Lanes x;
  memcpy(&x, p, sizeof x);
  return x;
}
INLINE Lanes load(const bf16* p) {
  // Without intrinsics the compiler splits a vector of 16 in halves.
#if defined(__AVX512F__)
  __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return cast<Lanes>(_mm512_slli_epi32(x, 16));
#else
  Shorts x;
  memcpy(&x, p, sizeof x);
  return cast<Lanes>(__builtin_convertvector(x, Bits) << 16);
#endif
}
INLINE Lanes load(const f16* p) {
#if defined(__AVX512F__)
  return cast<Lanes>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
  return cast<Lanes>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  Shorts halves;
  memcpy(&halves, p, sizeof halves);
  Bits x = __builtin_convertvector(halves, Bits);
  // The exponent's bias changes from 15 to 127. The multiplication is exact, also for subnormal numbers.
  Lanes y = cast<Lanes>((x & 0x7fffu) << 13) * 5.192296858534828e33f;
  Bits special = cast<Bits>((x & 0x7c00u) == 0x7c00u) & 0x7f800000u;
  return cast<Lanes>(cast<Bits>(y) | special | (x & 0x8000u) << 16);
#endif
}

// Both are accurate to one unit in the last place: 1 / y for 1 <= y < 2^126, and x / y for 1 <= y <= 2. AVX-512 refines
// an estimate of 1 / y, which is faster than a division; each step doubles the number of correct digits.
INLINE Lanes inverse(Lanes y) {
#if defined(__AVX512F__)
  Lanes r = cast<Lanes>(_mm512_rcp14_ps(cast<__m512>(y)));
  return fma(fma(-y, r, all(1.0f)), r, r);
#else
  return 1.0f / y;
#endif
}
INLINE Lanes quotient(Lanes x, Lanes y) {
#if defined(__AVX512F__)
  Lanes r = inverse(y), q = x * r;
  return fma(fma(-y, q, x), r, q);
#else
  return x / y;
#endif
}

INLINE void store(float* p, Lanes x) {
  memcpy(p, &x, sizeof x);
}
// Rounds to the nearest, ties to even.
INLINE Shorts to_bf16(Lanes x) {
  Bits bits = cast<Bits>(x);
  Bits rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  Bits quiet = bits >> 16 | 0x40u;
  Bits is_nan = cast<Bits>(x != x);
  return __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), Shorts);
}
INLINE void store(bf16* p, Lanes x) {
#if defined(__AVX512BF16__)
  // The instruction flushes subnormal numbers to 0.
  __m256bh y = _mm512_cvtneps_pbh(cast<__m512>(x));
#else
  Shorts y = to_bf16(x);
#endif
  memcpy(p, &y, sizeof y);
}
INLINE void store(f16* p, Lanes x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
#else
  Bits bits = cast<Bits>(x), sign = bits & 0x80000000u, size = bits ^ sign;
  auto pick = [](Bits mask, Bits x, Bits y) __attribute__((always_inline)) { return (mask & x) | (~mask & y); };
  Bits normal = (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
  // For subnormal results, adding 1/2 leaves the rounded digits in the low bits.
  Bits small = cast<Bits>(cast<Lanes>(size) + 0.5f) - (126u << 23);
  Bits huge = pick(cast<Bits>(size > 0x7f800000u), Bits{} + 0x7e00u, Bits{} + 0x7c00u);
  Bits y = pick(cast<Bits>(size < 113u << 23), small, normal);
  y = pick(cast<Bits>(size >= 143u << 23), huge, y) | sign >> 16;
  Shorts halves = __builtin_convertvector(y, Shorts);
  memcpy(p, &halves, sizeof halves);
#endif
}

// Partial vectors, for sizes that are no multiple of the width: load_part reads the first `n` elements and fills up
// with zeros, store_part writes the first `n` elements.
template <class T>
INLINE Lanes load_part(const T* p, long n) {
  T part[width] = {};
  for (long i = 0; i < n; i++) {
    part[i] = p[i];
  }
  return load(part);
}
template <class T>
INLINE void store_part(T* p, Lanes x, long n) {
  T part[width];
  store(part, x);
  for (long i = 0; i < n; i++) {
    p[i] = part[i];
  }
}

// Calls f(i, load, store) for each vector of n elements. `load` and `store` handle a partial vector at the end.
template <class F>
INLINE void for_each(long n, F f) {
  long i = 0;
  for (; i + width <= n; i += width) {
    f(
        i, [](const auto* p) __attribute__((always_inline)) { return load(p); },
        [](auto* p, Lanes x) __attribute__((always_inline)) { store(p, x); });
  }
  if (i < n) {
    f(
        i, [=](const auto* p) __attribute__((always_inline)) { return load_part(p, n - i); },
        [=](auto* p, Lanes x) __attribute__((always_inline)) { store_part(p, x, n - i); });
  }
}

// Reduces the lanes as a tree: l and l + width / 2, then l and l + width / 4, and so on.
template <class Op>
INLINE float fold(Lanes v, Op op) {
  float x[width];
  memcpy(x, &v, sizeof x);
#pragma GCC unroll 4
  for (long half = width / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (long l = 0; l < half; l++) {
      x[l] = op(x[l], x[l + half]);
    }
  }
  return x[0];
}
INLINE float total(Lanes v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(cast<__m512>(v));
#else
  return fold(v, [](float a, float b) __attribute__((always_inline)) { return a + b; });
#endif
}
INLINE float largest(Lanes v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(cast<__m512>(v));
#else
  return fold(v, [](float a, float b) __attribute__((always_inline)) { return a > b ? a : b; });
#endif
}

} // namespace
} // namespace mlxrs::ops
