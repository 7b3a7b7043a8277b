// Conversions of codes, scales and x to integers, for the kernels of int_kernels.h.
#pragma once

#include "convert.h"
#include "int_kernels.h"

namespace mlxrs::matmul {
namespace {

#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE

// How codes become integers: `four` and `eight` bits have code of their own, `e2m1` uses a table, `any` handles all
// widths.
enum class Form { any, four, e2m1, eight };
constexpr int bits_of(Form form) {
  return form == Form::any ? 0 : form == Form::eight ? 8 : 4;
}

// For each e2m1 code, twice its value plus 12: an integer from 0 to 24.
constexpr long e2m1_zero = 12;
alignas(16) constexpr uint8_t e2m1_codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// The largest integer of x. Its high byte is 127. Its products with 128 codes of 8 bits stay below 2^31.
constexpr float largest = 127 * 256 + 127;

// The prefetch distance into L1, in bytes.
constexpr long ahead = 1024;
// The prefetch distance into L2, in bytes.
constexpr long far_ahead = 4096;

INLINE long smaller(long a, long b) {
  return a < b ? a : b;
}
INLINE constexpr long round_up(long n, long unit) {
  return (n + unit - 1) / unit * unit;
}

// value = integer * scale; integer = round(value * to_whole).
struct Factors {
  float scale, to_whole;
};

// The factors for a group whose largest magnitude has the bits `most`. If a number is not finite, the scale is NaN.
INLINE Factors factors_of(uint32_t most) {
  const float bound = as_float(most);
  // As bits, NaN is larger than infinity, and infinity is larger than any number.
  if (most >= 0x7f800000) {
    return {as_float(0x7fc00000), 0};
  }
  return bound < 0x1p-100f ? Factors{0, 0} : Factors{bound / largest, largest / bound};
}

// The scale of a group of integers, and the sum of the values that they represent.
struct Scaled {
  float scale, sum;
};

// Converts a group of x to integers.
inline Scaled to_whole(Float type, const uint16_t* x, long n, int16_t* to) {
  float values[128];
  uint32_t most = 0;
  for (long i = 0; i < n; i++) {
    values[i] = type == Float::f16 ? from_f16(x[i]) : from_bf16(x[i]);
  }
  for (long i = 0; i < n; i++) {
    uint32_t size = as_bits(values[i]) & 0x7fffffff;
    most = most < size ? size : most;
  }
  const auto [scale, factor] = factors_of(most);
  int32_t sum = 0;
  for (long i = 0; i < n; i++) {
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits. If a number is not finite, its integer
    // does not matter, because the scale is NaN.
    auto whole = static_cast<int16_t>(as_bits(values[i] * factor + 0x1.8p23f));
    to[i] = whole;
    sum += whole;
  }
  return {scale, static_cast<float>(sum) * scale};
}

// The bytes of the scales of a row. Its biases, if there are any, have as many.
inline long scale_bytes(const Weights& w) {
  return w.groups() * (w.coding != Coding::affine ? 1 : w.scale_type == Float::f32 ? 4 : 2);
}

// The scale and bias of codes q: value = q * scale + bias.
template <class V>
struct Affine {
  typename V::Real scale, bias;
};

// `width` scales or biases from `at` on. The first n exist; the others become zero.
template <class V>
INLINE typename V::Real some_scales(Float type, const void* from, long at, long n) {
  const long size = type == Float::f32 ? sizeof(float) : sizeof(uint16_t);
  const char* first = static_cast<const char*>(from) + at * size;
  char last[V::width * sizeof(float)];
  if (n < V::width) {
    std::memset(last, 0, sizeof last);
    std::memcpy(last, first, n * size);
    first = last;
  }
  return type == Float::f32 ? V::load(reinterpret_cast<const float*>(first))
      : type == Float::f16  ? V::from_f16(first)
                            : V::from_bf16(first);
}

// The same for scales of one byte.
template <class V>
INLINE typename V::Real some_bytes(const Weights& w, long at, long n) {
  uint8_t bytes[V::width] = {};
  std::memcpy(bytes, static_cast<const uint8_t*>(w.scales) + at, smaller(n, V::width));
  float scales[V::width];
  for (long i = 0; i < V::width; i++) {
    scales[i] = w.coding == Coding::nvfp4 ? from_e4m3(bytes[i]) : from_e8m0(bytes[i]);
  }
  return V::load(scales);
}

// The scales and biases of `width` groups.
template <class V, Form FORM>
INLINE Affine<V> some_groups(const Weights& w, long at, long n) {
  if constexpr (FORM != Form::e2m1) {
    return {some_scales<V>(w.scale_type, w.scales, at, n), some_scales<V>(w.scale_type, w.biases, at, n)};
  }
  auto half = V::multiply(some_bytes<V>(w, at, n), V::all(0.5f));
  return {half, V::multiply(half, V::all(-e2m1_zero))};
}

// Rounds n sums.
inline void write(Float type, const float* from, long n, uint16_t* to) {
  type == Float::f16 ? to_f16(from, n, to) : to_bf16(from, n, to);
}

} // namespace
} // namespace mlxrs::matmul
