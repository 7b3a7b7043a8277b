// CPU kernels of RMS norms for one vector, and their derivative. T is f32, f16 or bf16. Sums and products are in f32,
// and each result is rounded once, when it is stored.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"

namespace mlxrs::ops {
namespace {

// 1 / sqrt(squares / n + eps).
INLINE float norm_of(float squares, long n, float eps) {
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
}

// The sum of squares. Four accumulators hide the latency of the additions.
template <class T>
INLINE float squares(const T* x, long n) {
  Lanes sum[4] = {};
  long i = 0;
  for (; i + 4 * width <= n; i += 4 * width) {
#pragma GCC unroll 4
    for (long j = 0; j < 4; j++) {
      Lanes v = load(x + i + j * width);
      sum[j] = fma(v, v, sum[j]);
    }
  }
  for_each(n - i, [&](long j, auto load, auto) __attribute__((always_inline)) {
    Lanes v = load(x + i + j);
    sum[0] = fma(v, v, sum[0]);
  });
  return total((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <class T>
void rms_norm(const void* x_at, const void* weight_at, float eps, long n, void* y_at) {
  const T *x = static_cast<const T*>(x_at), *weight = static_cast<const T*>(weight_at);
  T* y = static_cast<T*>(y_at);
  Lanes factor = all(norm_of(squares(x, n), n, eps));
  if (weight == nullptr) {
    for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) { store(y + i, load(x + i) * factor); });
  } else {
    for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
      store(y + i, load(x + i) * factor * load(weight + i));
    });
  }
}

template <class T>
void add_norm(const AddNorm& a, long n) {
  const T *x = static_cast<const T*>(a.x), *before = static_cast<const T*>(a.residual);
  const T* inner = static_cast<const T*>(a.inner_weight);
  T* sum = static_cast<T*>(a.sum);
  if (inner == nullptr) {
    for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
      store(sum + i, load(before + i) + load(x + i));
    });
  } else {
    Lanes factor = all(norm_of(squares(x, n), n, a.eps));
    for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
      store(sum + i, fma(load(x + i) * factor, load(inner + i), load(before + i)));
    });
  }
  if (a.y != nullptr) {
    // The norm reads the rounded sum, as the next layer does.
    rms_norm<T>(sum, a.weight, a.eps, n, a.y);
  }
}

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

// dx and dweight (added to) of y = x r weight, where r = 1 / sqrt(mean(x^2) + eps).
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

} // namespace
} // namespace mlxrs::ops
