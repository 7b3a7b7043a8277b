// CPU kernels of linear attention for some rows of a state, computed in f32.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"

namespace mlxrs::ops {
namespace {

// delta_tokens: tokens whose queries and keys stay in L1 while all rows of the state read them. delta_rows: rows of the
// state that one pass updates together.
constexpr long delta_tokens = 16, delta_rows = 4;

// The length of a row, padded to a multiple of two vectors.
INLINE long delta_padded(long n) {
  return (n + 2 * width - 1) / (2 * width) * (2 * width);
}

inline long delta_size(const Delta& d) {
  return delta_tokens * (3 * delta_padded(d.key_dim) + 2 * d.rows) + delta_rows * delta_padded(d.key_dim);
}

// y = x, followed by zeros up to the padded length.
template <class T>
INLINE void delta_copied(const T* x, long n, long padded, float* y) {
  for (long i = n / width * width; i < padded; i += width) {
    store(y + i, Lanes{});
  }
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) { store(y + i, load(x + i)); });
}

// y = x * factor / sqrt(sum of squares + 1e-6), followed by zeros up to the padded length.
template <class T>
INLINE void delta_unit(const T* x, float factor, long n, long padded, float* y) {
  Lanes sum = {};
  delta_copied(x, n, padded, y);
  for (long i = 0; i < padded; i += width) {
    sum = fma(load(y + i), load(y + i), sum);
  }
  Lanes scale = all(factor / __builtin_sqrtf(total(sum) + 1e-6f));
  for (long i = 0; i < padded; i += width) {
    store(y + i, load(y + i) * scale);
  }
}

// The padded inputs of one token: query, key, and one decay for the state or for each channel.
struct DeltaToken {
  const float *q, *k, *decays;
  float decay, beta;
};

// Updates R rows of the state with one token and computes their outputs. Rows are `n` elements apart. Each row has two
// accumulators, and the order of its sums depends only on n.
template <Rule rule, long R>
INLINE void delta_token(float* state, const DeltaToken& t, long n, const float* v, float skip, float* y) {
  auto decay = [&](long i) __attribute__((always_inline)) {
    return rule == Rule::channels ? load(t.decays + i) : all(t.decay);
  };
  Lanes read[R][2] = {}, change[R];
  if constexpr (rule == Rule::scan) {
#pragma GCC unroll 4
    for (long r = 0; r < R; r++) {
      change[r] = all(t.beta * v[r]);
    }
  } else {
    Lanes known[R][2] = {};
    for (long i = 0; i < n; i += 2 * width) {
      Lanes k0 = load(t.k + i), k1 = load(t.k + i + width);
      if constexpr (rule == Rule::channels) {
        k0 = k0 * decay(i);
        k1 = k1 * decay(i + width);
      }
#pragma GCC unroll 4
      for (long r = 0; r < R; r++) {
        known[r][0] = fma(load(state + r * n + i), k0, known[r][0]);
        known[r][1] = fma(load(state + r * n + i + width), k1, known[r][1]);
      }
    }
    float factor = rule == Rule::channels ? 1.0f : t.decay;
#pragma GCC unroll 4
    for (long r = 0; r < R; r++) {
      change[r] = all(t.beta * (v[r] - factor * total(known[r][0] + known[r][1])));
    }
  }
  for (long i = 0; i < n; i += 2 * width) {
    Lanes k0 = load(t.k + i), k1 = load(t.k + i + width), q0 = load(t.q + i), q1 = load(t.q + i + width);
    Lanes d0 = decay(i), d1 = decay(i + width);
#pragma GCC unroll 4
    for (long r = 0; r < R; r++) {
      float* s = state + r * n + i;
      Lanes s0 = fma(change[r], k0, load(s) * d0), s1 = fma(change[r], k1, load(s + width) * d1);
      store(s, s0);
      store(s + width, s1);
      read[r][0] = fma(s0, q0, read[r][0]);
      read[r][1] = fma(s1, q1, read[r][1]);
    }
  }
#pragma GCC unroll 4
  for (long r = 0; r < R; r++) {
    y[r] = total(read[r][0] + read[r][1]);
    if constexpr (rule == Rule::scan) {
      y[r] += skip * v[r];
    }
  }
}

// The parts of the workspace.
struct DeltaWork {
  float *qk, *state, *v, *y;
};

// Updates R rows of the state with some tokens.
template <Rule rule, long R>
INLINE void delta_block(const Delta& d, long row, long first, long tokens, const float* from, const DeltaWork& work) {
  long n = delta_padded(d.key_dim);
  for (long r = 0; r < R; r++) {
    delta_copied(from + (row + r) * d.key_dim, d.key_dim, n, work.state + r * n);
  }
  for (long t = 0; t < tokens; t++) {
    const float* qk = work.qk + 3 * t * n;
    const float decay = rule == Rule::channels ? 0.0f : d.decay[(first + t) * d.decay_step];
    DeltaToken token{qk, qk + n, qk + 2 * n, decay, d.beta[(first + t) * d.beta_step]};
    delta_token<rule, R>(work.state, token, n, work.v + t * d.rows + row, d.skip, work.y + t * d.rows + row);
  }
  for (long r = 0; r < R; r++) {
    float* to = d.after + (row + r) * d.key_dim;
    for_each(d.key_dim, [&](long i, auto, auto store) __attribute__((always_inline)) {
      store(to + i, load(work.state + r * n + i));
    });
  }
}

template <Rule rule, class T>
void delta_of(const Delta& d, float* memory) {
  long n = delta_padded(d.key_dim);
  DeltaWork work{memory, memory + 3 * delta_tokens * n};
  work.v = work.state + delta_rows * n;
  work.y = work.v + delta_tokens * d.rows;
  float q_factor = 1.0f / __builtin_sqrtf(static_cast<float>(d.key_dim));
  const float* from = d.before;
  // At least one pass, which copies the state if there are no tokens.
  for (long first = 0; first == 0 || first < d.tokens; first += delta_tokens) {
    long tokens = least(delta_tokens, d.tokens - first);
    for (long t = 0; t < tokens; t++) {
      long at = (first + t) * d.step;
      const T *q = static_cast<const T*>(d.q) + at, *k = static_cast<const T*>(d.k) + at;
      float* to = work.qk + 3 * t * n;
      if constexpr (rule == Rule::scan) {
        delta_copied(q, d.key_dim, n, to);
        delta_copied(k, d.key_dim, n, to + n);
      } else {
        delta_unit(q, q_factor, d.key_dim, n, to);
        delta_unit(k, 1.0f, d.key_dim, n, to + n);
      }
      if constexpr (rule == Rule::channels) {
        delta_copied(d.decay + (first + t) * d.decay_step, d.key_dim, n, to + 2 * n);
      }
      const T* values = static_cast<const T*>(d.v) + at;
      for_each(d.rows, [&](long i, auto load, auto store) __attribute__((always_inline)) {
        store(work.v + t * d.rows + i, load(values + i));
      });
    }
    long row = 0;
    for (; row + delta_rows <= d.rows; row += delta_rows) {
      delta_block<rule, delta_rows>(d, row, first, tokens, from, work);
    }
    for (; row < d.rows; row++) {
      delta_block<rule, 1>(d, row, first, tokens, from, work);
    }
    for (long t = 0; t < tokens; t++) {
      T* to = static_cast<T*>(d.y) + (first + t) * d.y_step;
      for_each(d.rows, [&](long i, auto load, auto store) __attribute__((always_inline)) {
        store(to + i, load(work.y + t * d.rows + i));
      });
    }
    from = d.after;
  }
}

template <class T>
void delta(const Delta& d, float* work) {
  switch (d.rule) {
    case Rule::delta:
      return delta_of<Rule::delta, T>(d, work);
    case Rule::channels:
      return delta_of<Rule::channels, T>(d, work);
    case Rule::scan:
      return delta_of<Rule::scan, T>(d, work);
  }
}

} // namespace
} // namespace mlxrs::ops
