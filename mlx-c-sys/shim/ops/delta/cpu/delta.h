// The gated delta rule on some rows of a state, computed in f32.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"

namespace mlxrs::ops {
namespace {

// Tokens whose queries and keys are in L1 while all rows of the state see them, and rows that are in registers and L1 together.
constexpr long delta_tokens = 16, delta_rows = 4;

// The length of a row with zeros behind it, for two vectors at a time.
INLINE long delta_padded(long n) {
  return (n + 2 * width - 1) / (2 * width) * (2 * width);
}

inline long delta_size(const Delta& d) {
  return delta_tokens * 2 * (delta_padded(d.key_dim) + d.rows) + delta_rows * delta_padded(d.key_dim);
}

// y = x factor / sqrt(sum of squares + 1e-6), and zeros behind it.
template <class T>
INLINE void delta_unit(const T* x, float factor, long n, long padded, float* y) {
  Lanes sum = {};
  for (long i = n / width * width; i < padded; i += width) {
    store(y + i, Lanes{});
  }
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    Lanes v = load(x + i);
    sum = fma(v, v, sum);
    store(y + i, v);
  });
  Lanes scale = all(factor / __builtin_sqrtf(total(sum) + 1e-6f));
  for (long i = 0; i < padded; i += width) {
    store(y + i, load(y + i) * scale);
  }
}

// One token on R rows of the state, `n` apart: two sums a row, whose order depends on n alone.
template <long R>
INLINE void delta_token(
    float* state, const float* q, const float* k, long n, float decay, float beta, const float* v, float* y) {
  Lanes known[R][2] = {}, read[R][2] = {}, change[R];
  for (long i = 0; i < n; i += 2 * width) {
    Lanes k0 = load(k + i), k1 = load(k + i + width);
#pragma GCC unroll 4
    for (long r = 0; r < R; r++) {
      known[r][0] = fma(load(state + r * n + i), k0, known[r][0]);
      known[r][1] = fma(load(state + r * n + i + width), k1, known[r][1]);
    }
  }
#pragma GCC unroll 4
  for (long r = 0; r < R; r++) {
    change[r] = all(beta * (v[r] - decay * total(known[r][0] + known[r][1])));
  }
  for (long i = 0; i < n; i += 2 * width) {
    Lanes k0 = load(k + i), k1 = load(k + i + width), q0 = load(q + i), q1 = load(q + i + width);
#pragma GCC unroll 4
    for (long r = 0; r < R; r++) {
      float* s = state + r * n + i;
      Lanes s0 = fma(change[r], k0, load(s) * decay), s1 = fma(change[r], k1, load(s + width) * decay);
      store(s, s0);
      store(s + width, s1);
      read[r][0] = fma(s0, q0, read[r][0]);
      read[r][1] = fma(s1, q1, read[r][1]);
    }
  }
#pragma GCC unroll 4
  for (long r = 0; r < R; r++) {
    y[r] = total(read[r][0] + read[r][1]);
  }
}

// R rows of the state through some tokens: `state` has room for them.
template <long R>
INLINE void delta_block(
    const Delta& d, long row, long first, long tokens, const float* from, const float* qk, const float* v, float* y,
    float* state) {
  long n = delta_padded(d.key_dim);
  for (long r = 0; r < R; r++) {
    const float* x = from + (row + r) * d.key_dim;
    for (long i = d.key_dim / width * width; i < n; i += width) {
      store(state + r * n + i, Lanes{});
    }
    for_each(d.key_dim, [&](long i, auto load, auto) __attribute__((always_inline)) { store(state + r * n + i, load(x + i)); });
  }
  for (long t = 0; t < tokens; t++) {
    long gate = (first + t) * d.gate_step;
    delta_token<R>(
        state, qk + 2 * t * n, qk + (2 * t + 1) * n, n, d.decay[gate], d.beta[gate], v + t * d.rows + row,
        y + t * d.rows + row);
  }
  for (long r = 0; r < R; r++) {
    float* to = d.after + (row + r) * d.key_dim;
    for_each(d.key_dim, [&](long i, auto, auto store) __attribute__((always_inline)) { store(to + i, load(state + r * n + i)); });
  }
}

template <class T>
void delta(const Delta& d, float* work) {
  long n = delta_padded(d.key_dim);
  float *qk = work, *state = qk + 2 * delta_tokens * n, *v = state + delta_rows * n, *y = v + delta_tokens * d.rows;
  float q_factor = 1.0f / __builtin_sqrtf(static_cast<float>(d.key_dim));
  const float* from = d.before;
  // Without tokens the state is copied.
  for (long first = 0; first == 0 || first < d.tokens; first += delta_tokens) {
    long tokens = least(delta_tokens, d.tokens - first);
    for (long t = 0; t < tokens; t++) {
      long at = (first + t) * d.step;
      delta_unit(static_cast<const T*>(d.q) + at, q_factor, d.key_dim, n, qk + 2 * t * n);
      delta_unit(static_cast<const T*>(d.k) + at, 1.0f, d.key_dim, n, qk + (2 * t + 1) * n);
      const T* values = static_cast<const T*>(d.v) + at;
      for_each(d.rows, [&](long i, auto load, auto store) __attribute__((always_inline)) {
        store(v + t * d.rows + i, load(values + i));
      });
    }
    long row = 0;
    for (; row + delta_rows <= d.rows; row += delta_rows) {
      delta_block<delta_rows>(d, row, first, tokens, from, qk, v, y, state);
    }
    for (; row < d.rows; row++) {
      delta_block<1>(d, row, first, tokens, from, qk, v, y, state);
    }
    for (long t = 0; t < tokens; t++) {
      T* to = static_cast<T*>(d.y) + (first + t) * d.y_step;
      for_each(d.rows, [&](long i, auto load, auto store) __attribute__((always_inline)) {
        store(to + i, load(y + t * d.rows + i));
      });
    }
    from = d.after;
  }
}

} // namespace
} // namespace mlxrs::ops
