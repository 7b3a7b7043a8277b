// Elementary functions of SIMD vectors.
#pragma once

#include "ops/cpu/lanes.h"

namespace mlxrs::ops {
namespace {

// Rounds to the nearest integer for |x| < 2^22: after the addition of 1.5 * 2^23 the integer is in the low bits.
constexpr float rounder = 12582912.0f;

// e^x for x <= 0, within 2 units in the last place, and 0 below -87, near the end of f32's range. x = n ln 2 + r with
// |r| <= ln 2 / 2, where ln 2 is split into two parts (Cody and Waite, Software Manual for the Elementary Functions,
// 1980). e^r is a Taylor series of eight terms.
INLINE Lanes exp_below(Lanes x) {
  Ints below = x < -87.0f;
  Lanes inside = choose(below, all(-87.0f), x);
  Lanes shifted = fma(inside, all(1.44269504f), all(rounder));
  Lanes n = shifted - rounder;
  Lanes r = fma(n, all(-0.693359375f), inside);
  r = fma(n, all(2.12194440e-4f), r);
  Lanes e = all(1.0f / 5040);
  e = fma(e, r, all(1.0f / 720));
  e = fma(e, r, all(1.0f / 120));
  e = fma(e, r, all(1.0f / 24));
  e = fma(e, r, all(1.0f / 6));
  e = fma(e, r, all(0.5f));
  e = fma(e, r, all(1.0f));
  e = fma(e, r, all(1.0f));
  Lanes power = cast<Lanes>((cast<Bits>(shifted) + 127u) << 23);
  return choose(below, Lanes{}, e * power);
}

// 1 / (1 + e^-x) within 4 units in the last place (45 without FMA), and 0 below -87. e^-x = 2^n 2^f, where 2^f is a
// polynomial with the least relative error on |f| <= 1/2 (9e-8, exact at 0). f is computed with 1 / ln 2 split into two
// parts.
INLINE Lanes sigmoid(Lanes x) {
  constexpr float most = 87.0f;
  Ints below = x < -most;
  // NaN stays NaN.
  x = choose(below, all(-most), choose(x > most, all(most), x));
  Lanes shifted = fma(x, all(-1.44269502f), all(rounder));
  Lanes f = fma(x, all(-1.44269502f), rounder - shifted);
  f = fma(x, all(-1.92596299e-8f), f);
  Lanes e = all(1.326472615e-3f);
  e = fma(e, f, all(9.671512991e-3f));
  e = fma(e, f, all(5.550733581e-2f));
  e = fma(e, f, all(2.402224243e-1f));
  e = fma(e, f, all(6.931470037e-1f));
  e = fma(e, f, all(1.0f));
  // The low bits of `shifted` are n.
  e = cast<Lanes>(cast<Bits>(e) + (cast<Bits>(shifted) << 23));
  return choose(below, Lanes{}, inverse(1.0f + e));
}

// tanh x = (1 - e^-2|x|) / (1 + e^-2|x|) with the sign of x, and its series near 0 (coefficients: Moshier, Cephes).
INLINE Lanes tanh(Lanes x) {
  Lanes size = choose(x < 0.0f, -x, x);
  Lanes e = exp_below(-2.0f * size);
  Lanes far = quotient(1.0f - e, 1.0f + e);
  Lanes square = x * x;
  Lanes p = all(-5.70498872745e-3f);
  p = fma(p, square, all(2.06390887954e-2f));
  p = fma(p, square, all(-5.37397155531e-2f));
  p = fma(p, square, all(1.33314422036e-1f));
  p = fma(p, square, all(-3.33332819422e-1f));
  Lanes near = fma(p * square, x, x);
  return choose(size < 0.625f, near, choose(x < 0.0f, -far, far));
}

// Sine and cosine of angles up to 2^24. The angle is reduced by multiples of pi/2 in f64, which has enough digits for
// it.
INLINE void sin_cos(Lanes x, Lanes* sin, Lanes* cos) {
  typedef double Doubles __attribute__((vector_size(8 * width)));
  Lanes shifted = fma(x, all(0.636619772f), all(rounder));
  Lanes n = shifted - rounder;
  Ints quarter = cast<Ints>(shifted);
  Doubles exact = __builtin_convertvector(x, Doubles) - __builtin_convertvector(n, Doubles) * 1.5707963267948966;
  Lanes r = __builtin_convertvector(exact, Lanes);
  Lanes square = r * r;
  // Polynomials on |r| <= pi/4 (coefficients: Moshier, Cephes).
  Lanes s = all(-1.9515295891e-4f);
  s = fma(s, square, all(8.3321608736e-3f));
  s = fma(s, square, all(-1.6666654611e-1f));
  s = fma(s * square, r, r);
  Lanes c = all(2.443315711809948e-5f);
  c = fma(c, square, all(-1.388731625493765e-3f));
  c = fma(c, square, all(4.166664568298827e-2f));
  c = fma(c * square, square, fma(square, all(-0.5f), all(1.0f)));
  Ints swapped = (quarter & 1) != 0;
  Bits minus_s = cast<Bits>(quarter & 2) << 30, minus_c = cast<Bits>((quarter + 1) & 2) << 30;
  *sin = cast<Lanes>(cast<Bits>(choose(swapped, c, s)) ^ minus_s);
  *cos = cast<Lanes>(cast<Bits>(choose(swapped, s, c)) ^ minus_c);
}

constexpr float lowest = -3.40282347e38f;

// The largest element, and the sum of e^(x - largest).
struct Spread {
  float most, sum;
};
template <class T>
INLINE Spread spread(const T* x, long n) {
  Lanes best = all(lowest), sum = {};
  long i = 0;
  for (; i + width <= n; i += width) {
    best = larger(best, load(x + i));
  }
  float most = largest(best);
  for (long j = i; j < n; j++) {
    float v = load_part(x + j, 1)[0];
    most = v > most ? v : most;
  }
  for (long j = 0; j < i; j += width) {
    sum += exp_below(load(x + j) - most);
  }
  if (i < n) {
    Lanes rest = exp_below(load_part(x + i, n - i) - most);
    for (long l = n - i; l < width; l++) {
      rest[l] = 0;
    }
    sum += rest;
  }
  return {most, total(sum)};
}

} // namespace
} // namespace mlxrs::ops
