// CPU kernels of sampling: reductions of logits over a vocabulary, and the draw. T is f32, f16 or bf16; all are
// computed in f32.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"

namespace mlxrs::ops {
namespace {

template <class T>
float number_at(const void* x_at, long i) {
  return load_part(static_cast<const T*>(x_at) + i, 1)[0];
}

INLINE bool any(Ints mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(cast<__m512i>(mask), cast<__m512i>(mask)) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(cast<__m256>(mask)) != 0;
#else
  int32_t some = 0;
  for (long l = 0; l < width; l++) {
    some |= mask[l];
  }
  return some != 0;
#endif
}

// The index of the largest element, the first of equal ones. NaN is skipped.
template <class T>
long argmax(const void* x_at, long n, float* value) {
  const T* x = static_cast<const T*>(x_at);
  constexpr float nothing = -__builtin_inff();
  Lanes best = all(nothing);
  Ints where = all(int32_t{-1}), index;
  for (long l = 0; l < width; l++) {
    index[l] = static_cast<int32_t>(l);
  }
  long i = 0;
  for (; i + width <= n; i += width, index += static_cast<int32_t>(width)) {
    Lanes v = load(x + i);
    Ints higher = v > best;
    best = choose(higher, v, best);
    where = higher ? index : where;
  }
  long found = -1;
  *value = nothing;
  auto take = [&](float v, long at) __attribute__((always_inline)) {
    if (v > *value || (v == *value && at >= 0 && (found < 0 || at < found))) {
      *value = v;
      found = at;
    }
  };
  for (long l = 0; l < width; l++) {
    if (where[l] >= 0) {
      take(best[l], where[l]);
    }
  }
  for (; i < n; i++) {
    take(load_part(x + i, 1)[0], i);
  }
  // All elements are NaN or minus infinity.
  return found < 0 ? 0 : found;
}

template <class T>
bool peaks(const void* x_at, long n, float* to) {
  const T* x = static_cast<const T*>(x_at);
  constexpr float nothing = -__builtin_inff();
  Ints strange = {};
  bool numbers = true;
  for (long i = 0; i < n; i += peak_of, to++) {
    Lanes best = all(nothing);
    if (i + peak_of <= n) {
#pragma GCC unroll 16
      for (long j = 0; j < peak_of; j += width) {
        Lanes v = load(x + i + j);
        best = larger(v, best);
        strange |= v != v;
      }
      *to = largest(best);
    } else {
      *to = nothing;
      for (long j = i; j < n; j++) {
        float v = load_part(x + j, 1)[0];
        *to = v > *to ? v : *to;
        numbers = numbers && v == v;
      }
    }
  }
  return numbers && !any(strange);
}

template <class T>
float logsumexp(const void* x, long n) {
  Spread of = spread(static_cast<const T*>(x), n);
  return of.most + __builtin_logf(of.sum);
}

// The number of vectors that are summed in f32 before the sum is added in f64.
constexpr long sum_of = 8;
typedef double Doubles __attribute__((vector_size(8 * width)));

INLINE double total(Doubles v) {
  double sum = 0;
  for (long l = 0; l < width; l++) {
    sum += v[l];
  }
  return sum;
}

template <class T>
double weigh(const void* x_at, float best, long n, float* e) {
  const T* x = static_cast<const T*>(x_at);
  Doubles sum = {};
  for (long begin = 0; begin < n; begin += sum_of * width) {
    Lanes part = {};
    long rest = least(n - begin, sum_of * width);
    for_each(rest, [&](long j, auto load, auto store) __attribute__((always_inline)) {
      Lanes v = load(x + begin + j);
      Lanes y = choose(v == v, exp_below(v - best), Lanes{});
      store(e + begin + j, y);
      // Lanes past the end of a partial vector were read as zeros.
      part += j + width <= rest ? y : load_part(e + begin + j, rest - j);
    });
    sum += __builtin_convertvector(part, Doubles);
  }
  return total(sum);
}

inline void above(const float* e, long n, const float* floors, double* sums) {
  Doubles all[floors_at_once] = {};
  for (long begin = 0; begin < n; begin += sum_of * width) {
    Lanes parts[floors_at_once] = {};
    for_each(least(n - begin, sum_of * width), [&](long j, auto load, auto) __attribute__((always_inline)) {
      Lanes v = load(e + begin + j);
#pragma GCC unroll 4
      for (long k = 0; k < floors_at_once; k++) {
        parts[k] += choose(v >= floors[k], v, Lanes{});
      }
    });
#pragma GCC unroll 4
    for (long k = 0; k < floors_at_once; k++) {
      all[k] += __builtin_convertvector(parts[k], Doubles);
    }
  }
  for (long k = 0; k < floors_at_once; k++) {
    sums[k] = total(all[k]);
  }
}

inline long between(const float* e, long n, float low, float high, uint32_t* to) {
  long count = 0;
  auto take = [&](long i) __attribute__((always_inline)) {
    to[count] = static_cast<uint32_t>(i);
    count += e[i] >= low && e[i] < high;
  };
  long i = 0;
  for (; i + width <= n; i += width) {
    Lanes v = load(e + i);
    if (any((v >= low) & (v < high))) {
      for (long l = 0; l < width; l++) {
        take(i + l);
      }
    }
  }
  for (; i < n; i++) {
    take(i);
  }
  return count;
}

// Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"), for vectors of
// counters.
INLINE void threefry(const uint32_t* key, Bits& x, Bits& y) {
  constexpr int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1bd11bdau};
  x += keys[0];
  y += keys[1];
#pragma GCC unroll 5
  for (int i = 0; i < 5; i++) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      int turn = turns[i % 2][j];
      x += y;
      y = (y << turn | y >> (32 - turn)) ^ x;
    }
    x += keys[(i + 1) % 3];
    y += keys[(i + 2) % 3] + static_cast<uint32_t>(i + 1);
  }
}

// Converts 32 random bits to a number in (0, 1].
INLINE Lanes uniform(Bits bits) {
  return (__builtin_convertvector(bits, Lanes) + 0.5f) * 0x1p-32f;
}

// Evaluates logit * scale + noise of one token. The token replaces the best so far if it is larger, or equal with a
// lower id.
template <class T>
INLINE void compete(const Draw& d, long id, float u, Drawn* best) {
  float x = number_at<T>(d.x, id);
  if (!(x > d.least || (x == d.least && id <= d.last))) {
    return;
  }
  // -ln(1 - u). Where 1 - u loses digits, the first two terms of the series are used.
  float exponential = u < 0x1p-8f ? (u * 0.5f + 1.0f) * u : -__builtin_logf(1.0f - u > 0x1p-24f ? 1.0f - u : 0x1p-24f);
  float y = x * d.scale + -__builtin_logf(exponential);
  if (y > best->y || (y == best->y && id < best->id)) {
    *best = {y, id};
  }
}

template <class T>
void draw(const Draw& d, long first, long end, Drawn* best) {
  const T* x = static_cast<const T*>(d.x);
  long half = d.n / 2, second = d.n - half;
  Bits counter = {};
  for (long l = 0; l < width; l++) {
    counter[l] = static_cast<uint32_t>(first + l);
  }
  for (long i = first; i < end; i += width, counter += static_cast<uint32_t>(width)) {
    long n = least(width, end - i);
    Lanes a = n == width ? load(x + i) : load_part(x + i, n);
    Lanes b = n == width ? load(x + second + i) : load_part(x + second + i, n);
    // The largest u that can win. Because u <= -ln(1 - u), only u <= e^(logit * scale - best) can win. The margin
    // covers rounding errors.
    float allowance = 1e-3f + 4e-6f * (best->y < 0 ? -best->y : best->y);
    Lanes to_win = all(best->y - allowance), ahead = a * d.scale - to_win, behind = b * d.scale - to_win;
    // ln 2^-33, below the logarithm of the smallest u.
    constexpr float hopeless = -22.9f;
    Ints may = (ahead > hopeless) & (a >= d.least), may_too = (behind > hopeless) & (b >= d.least);
    if (!any(may | may_too)) {
      continue;
    }
    Bits bits = counter, more = counter + static_cast<uint32_t>(second);
    threefry(d.key, bits, more);
    Lanes u = uniform(bits), v = uniform(more);
    may &= u <= exp_below(smaller(ahead, Lanes{}));
    may_too &= v <= exp_below(smaller(behind, Lanes{}));
    if (!any(may | may_too)) {
      continue;
    }
    for (long l = 0; l < n; l++) {
      if (may[l]) {
        compete<T>(d, i + l, u[l], best);
      }
      if (may_too[l]) {
        compete<T>(d, second + i + l, v[l], best);
      }
    }
  }
}

template <class T>
void draw_one(const Draw& d, long id, Drawn* best) {
  long half = d.n / 2, second = d.n - half;
  bool later = id >= second;
  // The middle id of an odd n has a counter of its own, whose second half is unused.
  uint32_t counter = static_cast<uint32_t>(later ? id - second : id);
  Bits bits = Bits{} + counter, more = Bits{} + (id == half && half < second ? 0u : counter + static_cast<uint32_t>(second));
  threefry(d.key, bits, more);
  compete<T>(d, id, uniform(later ? more : bits)[0], best);
}

template <class T>
constexpr ChooseKernels choose_of() {
  return {number_at<T>, logsumexp<T>, argmax<T>, peaks<T>, weigh<T>, draw<T>, draw_one<T>};
}

} // namespace
} // namespace mlxrs::ops
