// CPU attention in f32, for queries, keys and values of any type, which are converted as they are read. The order of
// sums within a chunk:
//   - a score is summed over lanes of the head's elements, and the lanes are added as a tree;
//   - the weights of a chunk are summed over lanes of its positions, and the lanes are added as a tree;
//   - values are added in the order of positions.
// The order of chunks is in ops/cpu/kernels.h.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"

namespace mlxrs::ops {
namespace {


// The queries of a register tile. All accumulators and operands of the tile fit in registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr long tile_queries = 4;
#else
constexpr long tile_queries = 2;
#endif

// The score of a position that a query has no key for.
constexpr float outside = -__builtin_inff();

INLINE long padded(long n) {
  return (n + 15) / 16 * 16;
}

typedef float Four __attribute__((vector_size(16)));

// The sums of the lanes of four vectors, each in the tree order of `fold`.
INLINE Four sum4(const Lanes v[4]) {
  Four x[4];
#pragma GCC unroll 4
  for (long i = 0; i < 4; i++) {
    Four part[width / 4];
    memcpy(part, &v[i], sizeof part);
#pragma GCC unroll 2
    for (long half = width / 8; half > 0; half /= 2) {
#pragma GCC unroll 2
      for (long l = 0; l < half; l++) {
        part[l] += part[l + half];
      }
    }
    x[i] = part[0];
  }
  Four ab = __builtin_shufflevector(x[0], x[1], 0, 1, 4, 5) + __builtin_shufflevector(x[0], x[1], 2, 3, 6, 7);
  Four cd = __builtin_shufflevector(x[2], x[3], 0, 1, 4, 5) + __builtin_shufflevector(x[2], x[3], 2, 3, 6, 7);
  return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}

// The keys and values of the positions [begin, end) of chunk c. Position i counts from the chunk's first position.
template <class T>
struct Keys {
  // The addresses of a key and its value.
  struct Place {
    const T *k, *v;
  };
  long k_step, v_step;

  // Entries of the table for other positions are not read.
  Keys(const Attention& a, long c, long begin, long end)
      : k_step(a.k_step), v_step(a.v_step), slots_(a.slots) {
    const T *k = static_cast<const T*>(a.k), *v = static_cast<const T*>(a.v);
    if (a.table == nullptr || begin >= end) {
      shift_ = __builtin_ctzl(chunk);
      base_ = (c * chunk + a.turn) % a.slots;
      pages_[0] = {k, v};
      next_ = k + (base_ + chunk) % a.slots * k_step;
      return;
    }
    shift_ = __builtin_ctzl(a.slots);
    base_ = 0;
    long first = begin >> shift_, last = (end - 1) >> shift_, entry = ((c * chunk >> shift_) + first) % a.table_size;
    for (long page = first; page <= last; page++) {
      long id = a.table[entry * a.table_step];
      pages_[page] = {k + id * a.k_page, v + id * a.v_page};
      entry = entry + 1 < a.table_size ? entry + 1 : 0;
    }
    bool has_next = a.last[a.queries - 1] > (c + 1) * chunk;
    next_ = has_next ? k + a.table[(((c + 1) * chunk) >> shift_) % a.table_size * a.table_step] * a.k_page : pages_[first].k;
    // The other pages of the chunk stand for nothing, and may be addressed.
    for (long page = 0; page < chunk >> shift_; page++) {
      if (page < first || page > last) {
        pages_[page] = pages_[first];
      }
    }
  }

  INLINE Place at(long i) const {
    const Place& page = pages_[i >> shift_];
    long slot = slot_of(i);
    return {page.k + slot * k_step, page.v + slot * v_step};
  }
  // The address of a key that will be read: position i, or i - chunk of the next chunk.
  INLINE const T* ahead(long i) const {
    return i < chunk ? at(i).k : next_ + (i - chunk) * k_step;
  }
  // The number of positions from i on, at most up to the end of the chunk, that are stored one after the other.
  INLINE long run(long i) const {
    return least((1l << shift_) - (i & ((1l << shift_) - 1)), slots_ - slot_of(i));
  }

 private:
  INLINE long slot_of(long i) const {
    long slot = (i & ((1l << shift_) - 1)) + base_;
    return slot < slots_ ? slot : slot % slots_;
  }

  // Pages have 16 positions or more. Without pages there is one, of a whole chunk.
  Place pages_[chunk / 16];
  // The first key of the next chunk, if a query sees it; otherwise any key.
  const T* next_;
  long shift_, base_, slots_;
};

// The range of positions of chunk c that a query sees, counted from the chunk's first position.
struct Span {
  long begin, end;

  Span(const Attention& a, long c, long query)
      : begin(most(a.first[query] - c * chunk, 0)), end(least(a.last[query] - c * chunk, chunk)) {}
  bool is_empty() const {
    return begin >= end;
  }
};

// The scores of N queries for the keys [begin, end). Keys are read four at a time, from a multiple of four on.
template <class T, int N>
INLINE void scores(const Attention& a, const float* q, const Keys<T>& keys, long begin, long end, float* to) {
  long step = padded(a.dim);
  // With few queries, memory bandwidth is the bottleneck. Prefetches the values of these keys, and the keys of the next
  // page, because the hardware prefetcher stops at the end of a page.
  const bool is_alone = a.queries <= tile_queries;
  constexpr long page = 4096 / sizeof(T);
  const long keys_of_page = page / most(keys.k_step, 1);
  // The next key and value, if the positions after it are stored behind it: `left` of them.
  typename Keys<T>::Place place{};
  long left = 0;
  for (long s = begin / 4 * 4; s < end; s += 4) {
    const T *k[4], *v[4];
    if (s >= begin && s + 4 <= end && left < 4) {
      place = keys.at(s);
      left = keys.run(s);
    }
    if (s >= begin && s + 4 <= end && left >= 4) {
#pragma GCC unroll 4
      for (long j = 0; j < 4; j++) {
        k[j] = place.k + j * keys.k_step;
        v[j] = place.v + j * keys.v_step;
      }
      place.k += 4 * keys.k_step;
      place.v += 4 * keys.v_step;
    } else {
#pragma GCC unroll 4
      for (long j = 0; j < 4; j++) {
        auto own = keys.at(most(least(s + j, end - 1), begin));
        k[j] = own.k;
        v[j] = own.v;
      }
      left = 0;
    }
    const T* next = !is_alone || left > keys_of_page ? k[0] + page : keys.ahead(s + keys_of_page);
    left = most(left - 4, 0);
    Lanes sum[N][4] = {};
    long d = 0;
    for (; d + width <= a.dim; d += width) {
      Lanes x[N];
#pragma GCC unroll 4
      for (long i = 0; i < N; i++) {
        x[i] = load(q + i * step + d);
      }
#pragma GCC unroll 4
      for (long j = 0; j < 4; j++) {
        Lanes y = load(k[j] + d);
        if (is_alone) {
          __builtin_prefetch(v[j] + d, 0, 2);
        }
        if (is_alone) {
          __builtin_prefetch(next + j * keys.k_step + d, 0, 2);
        }
#pragma GCC unroll 4
        for (long i = 0; i < N; i++) {
          sum[i][j] = fma(x[i], y, sum[i][j]);
        }
      }
    }
    if (d < a.dim) {
      // Queries are padded with zeros.
      for (long j = 0; j < 4; j++) {
        Lanes y = load_part(k[j] + d, a.dim - d);
        for (long i = 0; i < N; i++) {
          sum[i][j] = fma(load(q + i * step + d), y, sum[i][j]);
        }
      }
    }
#pragma GCC unroll 4
    for (long i = 0; i < N; i++) {
      Four four = sum4(sum[i]);
      memcpy(to + i * chunk + s, &four, sizeof four);
    }
  }
}

// Sums the weighted values of the keys [begin, end) for N queries.
template <class T, int N>
INLINE void add_values(
    const Attention& a, const float* weights, const Keys<T>& keys, long begin, long end, float* to) {
  auto block = [&]<int VECTORS>(long d, auto load, auto store) __attribute__((always_inline)) {
    Lanes sum[N][VECTORS] = {};
    for (long s = begin; s < end;) {
      const T* v = keys.at(s).v + d;
      for (long stop = least(end, s + keys.run(s)); s < stop; s++, v += keys.v_step) {
#pragma GCC unroll 4
        for (long j = 0; j < VECTORS; j++) {
          Lanes y = load(v + j * width);
#pragma GCC unroll 4
          for (long i = 0; i < N; i++) {
            sum[i][j] = fma(all(weights[i * chunk + s]), y, sum[i][j]);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (long i = 0; i < N; i++) {
#pragma GCC unroll 4
      for (long j = 0; j < VECTORS; j++) {
        store(to + i * a.value_dim + d + j * width, sum[i][j]);
      }
    }
  };
  long d = 0;
  auto whole = [](const auto* p) __attribute__((always_inline)) { return load(p); };
  auto put = [](auto* p, Lanes x) __attribute__((always_inline)) { store(p, x); };
  for (; d + 4 * width <= a.value_dim; d += 4 * width) {
    block.template operator()<4>(d, whole, put);
  }
  for_each(a.value_dim - d, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    block.template operator()<1>(d + i, load, store);
  });
}

// Replaces scores by weights: e^(score - largest) for the positions of the span, and 0 elsewhere in [begin, end). The
// score of a key that a mask of booleans hides is `lowest`: if it hides all keys of a query, they have equal weights.
// Lanes outside the span are -infinity, so that they never count.
INLINE void weigh(
    const Attention& a, long c, long query, Span span, long begin, long end, float* x, float* best, float* sum) {
  long first = span.begin / width * width, last = (span.end + width - 1) / width * width;
  for (long i = first; i < last; i += width) {
    Lanes s = a.scale * load(x + i);
    if (a.cap != 0) {
      s = a.cap * tanh(s / a.cap);
    }
    store(x + i, s);
  }
  if (a.slopes != nullptr) {
    float slope = a.slopes[query % a.group * a.slope_step];
    long own = a.at + query / a.group - c * chunk;
    for (long i = span.begin; i < span.end; i++) {
      x[i] += slope * static_cast<float>(i - own);
    }
  }
  if (a.seen != nullptr || a.added != nullptr) {
    long at = query / a.group * a.mask_token + query % a.group * a.mask_head + c * chunk * a.mask_slot;
    for (long i = span.begin; i < span.end; i++) {
      if (a.added != nullptr) {
        x[i] += a.added[at + i * a.mask_slot];
      } else if (!a.seen[at + i * a.mask_slot]) {
        x[i] = lowest;
      }
    }
  }
  for (long i = first; i < span.begin; i++) {
    x[i] = outside;
  }
  for (long i = span.end; i < last; i++) {
    x[i] = outside;
  }
  Lanes high = all(lowest);
  for (long i = first; i < last; i += width) {
    high = larger(load(x + i), high);
  }
  *best = largest(high);
  Lanes total_of = {};
  for (long i = first; i < last; i += width) {
    Lanes e = exp_below(load(x + i) - *best);
    total_of += e;
    store(x + i, e);
  }
  *sum = total(total_of);
  for (long i = begin; i < span.begin; i++) {
    x[i] = 0;
  }
  for (long i = span.end; i < end; i++) {
    x[i] = 0;
  }
}

// Computes a register tile: N queries from `query` on, for all keys of chunk c that one of them sees.
template <class T, int N>
INLINE void tile(const Attention& a, const float* q, long c, long query, float* work, const Partial& to) {
  long begin = chunk, end = 0;
  for (long i = 0; i < N; i++) {
    Span span(a, c, query + i);
    if (!span.is_empty()) {
      begin = least(begin, span.begin);
      end = most(end, span.end);
    }
  }
  float* values = to.values + query * a.value_dim;
  if (begin >= end) {
    for (long i = 0; i < N; i++) {
      to.largest[query + i] = lowest;
      to.sum[query + i] = 0;
    }
    return;
  }
  Keys<T> keys(a, c, begin, end);
  scores<T, N>(a, q + query * padded(a.dim), keys, begin, end, work);
  for (long i = 0; i < N; i++) {
    Span span(a, c, query + i);
    if (span.is_empty()) {
      to.largest[query + i] = lowest;
      to.sum[query + i] = 0;
      memset(work + i * chunk, 0, chunk * sizeof(float));
      continue;
    }
    weigh(a, c, query + i, span, begin, end, work + i * chunk, to.largest + query + i, to.sum + query + i);
  }
  add_values<T, N>(a, work, keys, begin, end, values);
}

template <class T>
void attend_chunk(const Attention& a, const float* q, long c, float* work, const Partial& to) {
  long query = 0;
  for (; query + tile_queries <= a.queries; query += tile_queries) {
    tile<T, tile_queries>(a, q, c, query, work, to);
  }
  switch (a.queries - query) {
    case 3:
      return tile<T, 3>(a, q, c, query, work, to);
    case 2:
      return tile<T, 2>(a, q, c, query, work, to);
    case 1:
      return tile<T, 1>(a, q, c, query, work, to);
  }
}

inline long loaded_size(const Attention& a) {
  return a.queries * padded(a.dim);
}
inline long work_size(const Attention&) {
  return tile_queries * chunk;
}

template <class T>
void load_queries(const Attention& a, float* to) {
  for (long r = 0; r < a.queries; r++, to += padded(a.dim)) {
    const T* from = static_cast<const T*>(a.q) + r / a.group * a.q_token + r % a.group * a.q_head;
    memset(to + padded(a.dim) - 16, 0, 16 * sizeof(float));
    for_each(a.dim, [&](long i, auto load, auto store) __attribute__((always_inline)) { store(to + i, load(from + i)); });
  }
}

template <class T>
void finish_values(const float* values, float sum, long n, void* y) {
  // A query that sees no key gets zeros. Its values are undefined.
  if (sum == 0) {
    memset(y, 0, n * sizeof(T));
    return;
  }
  float factor = 1.0f / sum;
  for_each(n, [&](long i, auto load, auto store) __attribute__((always_inline)) {
    store(static_cast<T*>(y) + i, load(values + i) * factor);
  });
}

inline void merge(long queries, long value_dim, const Partial& to, const Partial& more) {
  for (long r = 0; r < queries; r++) {
    if (more.sum[r] == 0) {
      continue;
    }
    if (to.sum[r] == 0) {
      // The values of `to` are undefined.
      to.largest[r] = more.largest[r];
      to.sum[r] = more.sum[r];
      memcpy(to.values + r * value_dim, more.values + r * value_dim, value_dim * sizeof(float));
      continue;
    }
    float best = to.largest[r] > more.largest[r] ? to.largest[r] : more.largest[r];
    float old = exp_below(all(to.largest[r] - best))[0], fresh = exp_below(all(more.largest[r] - best))[0];
    to.largest[r] = best;
    to.sum[r] = to.sum[r] * old + more.sum[r] * fresh;
    float *x = to.values + r * value_dim, *y = more.values + r * value_dim;
    for_each(value_dim, [&](long i, auto load, auto store) __attribute__((always_inline)) {
      store(x + i, fma(load(x + i), all(old), load(y + i) * fresh));
    });
  }
}

template <class T>
constexpr AttentionKernels attention_of() {
  return {loaded_size, work_size, load_queries<T>, attend_chunk<T>, finish_values<T>};
}

} // namespace
} // namespace mlxrs::ops
