// Derivatives of the fused operations, and what else training needs; f32.
#pragma once

#include "attention.h"
#include "rows.h"

namespace mlxrs::fused {
namespace {

INLINE float dot(const float* a, const float* b, long n) {
  Lanes sum[2] = {};
  long i = 0;
  for (; i + 2 * width <= n; i += 2 * width) {
    sum[0] = fma(load(a + i), load(b + i), sum[0]);
    sum[1] = fma(load(a + i + width), load(b + i + width), sum[1]);
  }
  for_each(n - i, [&](long j, auto load, auto) __attribute__((always_inline)) {
    sum[0] = fma(load(a + i + j), load(b + i + j), sum[0]);
  });
  return total(sum[0] + sum[1]);
}

INLINE void clear(float* x, long n) {
  memset(x, 0, n * sizeof(float));
}

inline void rms_norm_vjp(
    const float* x, const float* weight, const float* dy, float eps, long n, float* dx, float* dweight) {
  float r = norm_of(squares(x, n), n, eps);
  const float* inner = dy;
  if (weight != nullptr) {
    for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
      Lanes d = load(dy + i);
      store(dweight + i, fma(d, load(x + i) * r, load(dweight + i)));
      store(dx + i, d * load(weight + i));
    });
    inner = dx;
  }
  Lanes back = all(dot(inner, x, n) / static_cast<float>(n) * r * r);
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    store(dx + i, r * (load(inner + i) - back * load(x + i)));
  });
}

// A gate is g * sigmoid(h(g)); `parts` gives h and h'.
template <class Parts>
INLINE void gate_vjp(const float* g, const float* up, const float* dy, long n, float* dg, float* dup, Parts parts) {
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    Lanes x = load(g + i), d = load(dy + i), h, slope;
    parts(x, &h, &slope);
    Lanes s = sigmoid(h), value = x * s;
    store(dup + i, d * value);
    store(dg + i, d * load(up + i) * (s + value * (1.0f - s) * slope));
  });
}
inline void swiglu_vjp(const float* g, const float* up, const float* dy, long n, float* dg, float* dup) {
  gate_vjp(g, up, dy, n, dg, dup, [](Lanes x, Lanes* h, Lanes* slope) __attribute__((always_inline)) {
    *h = x;
    *slope = all(1.0f);
  });
}
inline void geglu_vjp(const float* g, const float* up, const float* dy, long n, float* dg, float* dup) {
  gate_vjp(g, up, dy, n, dg, dup, [](Lanes x, Lanes* h, Lanes* slope) __attribute__((always_inline)) {
    constexpr float twice = 1.5957691216f, cubic = 0.044715f * twice;
    Lanes square = x * x;
    *h = x * fma(square, all(cubic), all(twice));
    *slope = fma(square, all(3 * cubic), all(twice));
  });
}

inline void softmax_vjp(float* x, float* dx, float scale, long n, long end) {
  Spread of = spread(x, n);
  float factor = 1.0f / of.sum;
  Lanes sum = {};
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    Lanes p = exp_below(smaller(load(x + i) - of.most, Lanes{})) * factor;
    store(x + i, p);
    sum = fma(p, load(dx + i), sum);
  });
  Lanes mean = all(total(sum));
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    store(dx + i, scale * load(x + i) * (load(dx + i) - mean));
  });
  clear(x + n, end - n);
  clear(dx + n, end - n);
}

inline float cross_entropy(const float* x, long target, long n) {
  Spread of = spread(x, n);
  return __builtin_logf(of.sum) + (of.most - x[target]);
}

inline void cross_entropy_vjp(const float* x, long target, float dy, long n, float* dx) {
  Spread of = spread(x, n);
  float factor = dy / of.sum;
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    store(dx + i, exp_below(smaller(load(x + i) - of.most, Lanes{})) * factor);
  });
  dx[target] -= dy;
}

} // namespace
} // namespace mlxrs::fused
