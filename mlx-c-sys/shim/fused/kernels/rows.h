// What is done to one vector of a token: norms, rotation, gates. T is f32, f16 or bf16; sums and products are in f32, and
// a result is rounded once, when it is stored.
#pragma once

#include "../kernels.h"
#include "math.h"
#include "packed_row.h"

namespace mlxrs::fused {
namespace {

// 1 / sqrt(mean of squares + eps). Four sums, so that one does not wait for the last.
INLINE float norm_of(float squares, long n, float eps) {
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
}

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
    // Of the sum as it was rounded: what the next layer reads.
    rms_norm<T>(sum, a.weight, a.eps, n, a.y);
  }
}

template <class T>
void rotate(const Rotation& r, const void* x_at, void* y_at) {
  const T* x = static_cast<const T*>(x_at);
  T* y = static_cast<T*>(y_at);
  if (!r.traditional) {
    for_each(r.half, [&](long i, auto load, auto store) __attribute__((always_inline)) {
      Lanes a = load(x + i), b = load(x + r.half + i), cos = load(r.cos + i), sin = load(r.sin + i);
      store(y + i, a * cos - b * sin);
      store(y + r.half + i, a * sin + b * cos);
    });
  } else {
    for (long i = 0; i < r.half; i++) {
      float a = load_part(x + 2 * i, 1)[0], b = load_part(x + 2 * i + 1, 1)[0];
      store_part(y + 2 * i, all(a * r.cos[i] - b * r.sin[i]), 1);
      store_part(y + 2 * i + 1, all(a * r.sin[i] + b * r.cos[i]), 1);
    }
  }
  if (x != y) {
    memcpy(y + 2 * r.half, x + 2 * r.half, (r.n - 2 * r.half) * sizeof(T));
  }
}

// cos and sin of position / period. `position` is a whole number, so that f32 has it up to 2^24.
inline void angles(float position, const float* frequencies, long half, float* cos, float* sin) {
  for_each(half, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    Lanes angle = position * load(frequencies + i), s, c;
    // sin_cos is right up to 2^22 times pi/2; positions beyond that are no model's.
    if (largest(choose(angle < 0.0f, -angle, angle)) < 4e6f) {
      sin_cos(angle, &s, &c);
    } else {
      for (long l = 0; l < width; l++) {
        s[l] = __builtin_sinf(angle[l]);
        c[l] = __builtin_cosf(angle[l]);
      }
    }
    store(sin + i, s);
    store(cos + i, c);
  });
}

template <class T>
void swiglu(const void* gate_at, const void* up_at, long n, void* y_at) {
  const T *gate = static_cast<const T*>(gate_at), *up = static_cast<const T*>(up_at);
  T* y = static_cast<T*>(y_at);
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    Lanes g = load(gate + i);
    store(y + i, g * sigmoid(g) * load(up + i));
  });
}

// The tanh approximation of gelu.
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

template <class T>
constexpr RowKernels rows_of() {
  return {rms_norm<T>, add_norm<T>, rotate<T>, swiglu<T>, geglu<T>, soft_cap<T>, pack<T>};
}

} // namespace
} // namespace mlxrs::fused
