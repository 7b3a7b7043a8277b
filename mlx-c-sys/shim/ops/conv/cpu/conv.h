// The CPU kernel of causal depthwise convolutions: one token, n channels, computed in f32. x[j] is the vector for tap
// j.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"

namespace mlxrs::ops {
namespace {

template <class T>
void conv(
    const void* const* x, const void* taps_at, const void* bias_at, long count, long step, long n, bool silu, void* y_at) {
  const T *taps = static_cast<const T*>(taps_at), *bias = static_cast<const T*>(bias_at);
  T* y = static_cast<T*>(y_at);
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    Lanes sum = load(static_cast<const T*>(x[0]) + i) * load(taps + i);
    for (long j = 1; j < count; j++) {
      sum = fma(load(static_cast<const T*>(x[j]) + i), load(taps + j * step + i), sum);
    }
    if (bias != nullptr) {
      sum = sum + load(bias + i);
    }
    store(y + i, silu ? sum * sigmoid(sum) : sum);
  });
}

} // namespace
} // namespace mlxrs::ops
