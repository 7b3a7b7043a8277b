// The CPU kernel of the softmax of one row and its derivative, in f32, for training.
#pragma once

#include "ops/attention/cpu/attention.h"

namespace mlxrs::ops {
namespace {

INLINE void clear(float* x, long n) {
  memset(x, 0, n * sizeof(float));
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

} // namespace
} // namespace mlxrs::ops
