// CPU kernels of gates and soft caps for one vector, computed in f32, and the derivatives of the gates.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"

namespace mlxrs::ops {
namespace {

template <class T>
void swiglu(const void* gate_at, const void* up_at, long n, void* y_at) {
  const T *gate = static_cast<const T*>(gate_at), *up = static_cast<const T*>(up_at);
  T* y = static_cast<T*>(y_at);
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    Lanes g = load(gate + i);
    store(y + i, g * sigmoid(g) * load(up + i));
  });
}

// GELU with the tanh approximation.
template <class T>
void geglu(const void* gate_at, const void* up_at, long n, void* y_at) {
  const T *gate = static_cast<const T*>(gate_at), *up = static_cast<const T*>(up_at);
  T* y = static_cast<T*>(y_at);
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    Lanes g = load(gate + i);
    // (1 + tanh z) / 2 is sigmoid(2 z).
    Lanes inner = g * fma(g * g, all(0.044715f * 1.5957691216f), all(1.5957691216f));
    store(y + i, g * sigmoid(inner) * load(up + i));
  });
}

// cap tanh(x / cap)
template <class T>
void soft_cap(const void* x_at, float cap, long n, void* y_at) {
  const T* x = static_cast<const T*>(x_at);
  T* y = static_cast<T*>(y_at);
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    store(y + i, cap * tanh(load(x + i) / cap));
  });
}

// The derivative of gate(g) * up for gates of the form g * sigmoid(h(g)). `parts` computes h and its derivative.
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

} // namespace
} // namespace mlxrs::ops
