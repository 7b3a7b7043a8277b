// CPU kernels that pack and unpack vectors (see RowPacking in ops/cpu/kernels.h). Each product and each sum is rounded
// as in MLX's graph, so that all instruction sets give the same numbers.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/lanes.h"

namespace mlxrs::ops {
namespace {

typedef uint8_t Bytes __attribute__((vector_size(width)));
// Two elements of four bits each.
typedef uint8_t Pairs __attribute__((vector_size(width / 2)));
typedef uint64_t Longs __attribute__((vector_size(4 * width)));

INLINE float widened(float x) {
  return x;
}
INLINE float widened(bf16 x) {
  return cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
INLINE float widened(f16 x) {
  return load_part(&x, 1)[0];
}

// Rounds to the nearest integer, ties to even.
INLINE Lanes rounded(Lanes x) {
  // From 2^23 on, every f32 is an integer.
  Lanes far = choose(x < Lanes{}, all(-8388608.0f), all(8388608.0f)), near = (x + far) - far;
  Ints is_whole = (x >= 8388608.0f) | (x <= -8388608.0f) | (x != x);
  return choose(is_whole, x, near);
}

// Widens bytes to 32-bit or 64-bit lanes. Compilers convert element by element if the result is more than twice as
// wide, so intrinsics are used.
INLINE Ints widened(const Bytes* from) {
#if defined(__AVX512F__)
  return cast<Ints>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  return cast<Ints>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  Bytes x;
  memcpy(&x, from, sizeof x);
  return __builtin_convertvector(__builtin_convertvector(x, Shorts), Ints);
#endif
}
INLINE Longs widened(const Pairs* from) {
#if defined(__AVX512F__)
  return cast<Longs>(_mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  int32_t x;
  memcpy(&x, from, sizeof x);
  return cast<Longs>(_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(x)));
#else
  Pairs x;
  memcpy(&x, from, sizeof x);
  return __builtin_convertvector(x, Longs);
#endif
}

// The codes of `width` elements from element i on. i is a multiple of `width`.
template <int BITS>
INLINE Lanes codes(const uint8_t* from, long i) {
  if constexpr (BITS == 8) {
    return __builtin_convertvector(widened(reinterpret_cast<const Bytes*>(from + i)), Lanes);
  } else {
    // Each 64-bit lane holds a byte with two codes. The low code moves to the lane's first 32 bits, the high code to
    // the second.
    Longs pairs = widened(reinterpret_cast<const Pairs*>(from + (i >> 1)));
    pairs = (pairs | pairs << 28) & 0x0000000f0000000fu;
    return __builtin_convertvector(cast<Ints>(pairs), Lanes);
  }
}

// Stores elements. bf16 is for AMX tiles, and uses one instruction where the CPU has it.
INLINE void put(float* p, Lanes x) {
  store(p, x);
}
INLINE void put(bf16* p, Lanes x) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), cast<__m256i>(_mm512_cvtneps_pbh(cast<__m512>(x))));
#else
  store(p, x);
#endif
}

// Unpacks the n elements of a vector. Scales and biases have type T.
template <class T, int BITS, class To>
INLINE void unpack(const uint32_t* words, long group, long n, To* to) {
  const uint8_t* from = reinterpret_cast<const uint8_t*>(words);
  const uint8_t* factors = from + n * BITS / 8;
  for (long g = 0; g < n; g += group, factors += 2 * sizeof(T)) {
    T both[2];
    memcpy(both, factors, sizeof both);
    Lanes scale = all(widened(both[0])), bias = all(widened(both[1]));
    for (long i = g; i < g + group; i += 2 * width) {
#pragma GCC unroll 2
      for (long j = 0; j < 2 * width; j += width) {
        put(to + i + j, codes<BITS>(from, i + j) * scale + bias);
      }
    }
  }
}

// Packs a vector with the arithmetic of MLX's quantize: zero has an exact code, and so does that end of the group's
// range that is farther from zero.
template <class T>
void pack(const void* x_at, const RowPacking& packing, long n, uint32_t* y) {
  const T* x = static_cast<const T*>(x_at);
  uint8_t* to = reinterpret_cast<uint8_t*>(y);
  uint8_t* factors = to + n * packing.bits / 8;
  float highest_code = packing.bits == 8 ? 255.0f : 15.0f;
  for (long g = 0; g < n; g += packing.group, x += packing.group, factors += 2 * sizeof(T)) {
    Lanes low = load(x), high = low;
    for (long i = width; i < packing.group; i += width) {
      low = smaller(load(x + i), low);
      high = larger(load(x + i), high);
    }
    float least_of = -largest(-low), largest_of = largest(high);
    bool is_low = __builtin_fabsf(least_of) > __builtin_fabsf(largest_of);
    float scale = (largest_of - least_of) / highest_code;
    scale = scale > 1e-7f ? scale : 1e-7f;
    scale = is_low ? scale : -scale;
    float edge = is_low ? least_of : largest_of, bias = 0;
    if (float steps = rounded(all(edge / scale))[0]; steps != 0) {
      scale = edge / steps;
      bias = edge;
    }
    T both[2 * width];
    store(both, all(scale));
    store(both + 1, all(bias));
    memcpy(factors, both, 2 * sizeof(T));
    for (long i = 0; i < packing.group; i += width) {
      Lanes code = rounded((load(x + i) - bias) / scale);
      code = smaller(larger(code, Lanes{}), all(highest_code));
      Shorts shorts = __builtin_convertvector(__builtin_convertvector(code, Ints), Shorts);
      Bytes bytes = __builtin_convertvector(shorts, Bytes);
      if (packing.bits == 8) {
        memcpy(to + g + i, &bytes, sizeof bytes);
        continue;
      }
      uint8_t* pairs = to + (g + i) / 2;
      for (long j = 0; j < width / 2; j++) {
        pairs[j] = static_cast<uint8_t>(bytes[2 * j] | bytes[2 * j + 1] << 4);
      }
    }
  }
}

} // namespace
} // namespace mlxrs::ops
