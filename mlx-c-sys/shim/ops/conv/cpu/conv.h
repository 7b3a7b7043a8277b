// A causal convolution of single channels, with silu, computed in f32.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"

namespace mlxrs::ops {
namespace {

template <class T>
void conv(const void* const* x, const void* taps_at, long count, long step, long n, void* y_at) {
  const T* taps = static_cast<const T*>(taps_at);
  T* y = static_cast<T*>(y_at);
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    Lanes sum = load(static_cast<const T*>(x[0]) + i) * load(taps + i);
    for (long j = 1; j < count; j++) {
      sum = fma(load(static_cast<const T*>(x[j]) + i), load(taps + j * step + i), sum);
    }
    store(y + i, sum * sigmoid(sum));
  });
}

} // namespace
} // namespace mlxrs::ops
