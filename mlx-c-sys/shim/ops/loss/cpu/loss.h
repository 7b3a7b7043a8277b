// CPU kernels of cross entropy for one vector of f32 logits, and of its derivative.
#pragma once

#include "ops/cpu/math.h"

namespace mlxrs::ops {
namespace {

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
} // namespace mlxrs::ops
