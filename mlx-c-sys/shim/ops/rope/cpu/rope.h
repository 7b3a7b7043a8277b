// CPU kernels of rotary position embedding for one head of a token, computed in f32.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"

namespace mlxrs::ops {
namespace {

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

// cos and sin of position * frequency. `position` is an integer times the scale; f32 is exact for integers up to 2^24.
inline void angles(float position, const float* frequencies, long half, float* cos, float* sin) {
  for_each(half, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    Lanes angle = position * load(frequencies + i), s, c;
    // sin_cos is accurate for angles up to 2^22 pi/2. Larger ones, which no model reaches, use the C library.
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

} // namespace
} // namespace mlxrs::ops
