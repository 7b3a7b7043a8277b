// Attention of bf16 with AMX tiles of 16 x 16 sums (Intel 64 and IA-32 Architectures Software Developer's Manual,
// TDPBF16PS). A sum depends only on its row and its column of the tile. So a query's result does not depend on the
// other queries, and a decoded token has the same bits as in a prompt.
//
// Scores are computed as keys x queries, so that keys are read in place and the softmax runs along tiles. Weights are
// rounded to bf16 for the product with the values, as in models that were trained in bf16.
#include "packed.h"
#include "tiles.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)

namespace mlxrs::ops {
namespace {

INLINE long blocks(const Attention& a) {
  return (a.queries + side - 1) / side;
}

long tiled_size(const Attention& a) {
  return blocks(a) * (a.dim / depth) * tile_floats;
}

// Stores queries as the right operand of a tile product: pairs of elements x queries.
void load_tiles(const Attention& a, float* to) {
  for (long block = 0; block < blocks(a); block++) {
    const char* rows[side];
    for (long i = 0; i < side; i++) {
      long r = block * side + i;
      rows[i] = r < a.queries
          ? static_cast<const char*>(a.q) + 2 * (r / a.group * a.q_token + r % a.group * a.q_head)
          : nullptr;
    }
    for (long d = 0; d < a.dim; d += depth, to += tile_floats) {
      __m512i x[side];
      for (long i = 0; i < side; i++) {
        x[i] = rows[i] != nullptr ? _mm512_loadu_si512(rows[i] + 2 * d) : _mm512_setzero_si512();
      }
      transpose(x);
      for (long i = 0; i < side; i++) {
        _mm512_storeu_si512(to + i * side, x[i]);
      }
    }
  }
}

// The layout of the workspace of `tiled_chunk`: offsets in floats.
struct Areas {
  // Values as the right operand of a tile product: pairs of keys x elements. Tiles are ordered by 32 keys, then by 16
  // elements.
  float* values;
  // A dense copy of up to 32 keys that are not contiguous in memory.
  bf16* keys;
  // For each of two blocks of queries, the scores (keys x queries) and the weights (queries x keys).
  float *scores[2], *weights[2];

  Areas(const Attention& a, float* work) {
    values = work;
    work += chunk / depth * (a.value_dim / side) * tile_floats;
    keys = reinterpret_cast<bf16*>(work);
    work += 2 * side * a.dim / 2;
    for (long i = 0; i < 2; i++, work += chunk * side + chunk / depth * tile_floats) {
      scores[i] = work;
      weights[i] = work + chunk * side;
    }
  }
};

long tiled_work_size(const Attention& a) {
  return chunk * a.value_dim / 2 + side * a.dim + 2 * (chunk * side + chunk * side / 2);
}

// Loads the values of 32 keys from position `first` of the chunk on. Values outside [begin, end) become zeros.
void load_values(const Attention& a, const Keys<bf16>& keys, long first, long begin, long end, float* to) {
  const __m512i low = _mm512_set_epi16(
      47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  // Prefetches the keys that are read next.
  const bool is_first_use = a.queries <= side;
  for (long pair = 0; pair < side; pair++) {
    long i = first + 2 * pair;
    const Keys<bf16>::Place places[] = {keys.at(least(i, end - 1)), keys.at(least(i + 1, end - 1))};
    const bf16 *even = places[0].v, *odd = places[1].v;
    __mmask32 with_even = i >= begin && i < end ? ~0u : 0, with_odd = i + 1 >= begin && i + 1 < end ? ~0u : 0;
    if (is_first_use) {
      for (long d = 0; d < a.dim; d += depth) {
        for (const auto& place : places) {
          _mm_prefetch(reinterpret_cast<const char*>(place.k + d), _MM_HINT_T0);
        }
      }
    }
    float* row = to + pair * side;
    long d = 0;
    for (; d + 2 * side <= a.value_dim; d += 2 * side, row += 2 * tile_floats) {
      __m512i x = _mm512_maskz_loadu_epi16(with_even, even + d), y = _mm512_maskz_loadu_epi16(with_odd, odd + d);
      _mm512_storeu_si512(row, _mm512_permutex2var_epi16(x, low, y));
      _mm512_storeu_si512(row + tile_floats, _mm512_permutex2var_epi16(x, high, y));
    }
    if (d < a.value_dim) {
      __m512i x = _mm512_maskz_loadu_epi16(with_even & 0xffff, even + d);
      __m512i y = _mm512_maskz_loadu_epi16(with_odd & 0xffff, odd + d);
      _mm512_storeu_si512(row, _mm512_permutex2var_epi16(x, low, y));
    }
  }
}

// The address of 16 keys from position `first` of the chunk on: in place, or copied. Keys from `end` on are not read.
INLINE const bf16* load_keys(const Attention& a, const Keys<bf16>& keys, long first, long end, bf16* copy, long* step) {
  if (keys.run(first) >= side && first + side <= end) {
    *step = keys.k_step;
    return keys.at(first).k;
  }
  for (long i = 0; i < least(side, end - first); i++) {
    memcpy(copy + i * a.dim, keys.at(first + i).k, a.dim * sizeof(bf16));
  }
  *step = a.dim;
  return copy;
}

// Computes the scores of 32 keys for one or two blocks of COLUMNS queries. Scores of keys from `end` on are undefined.
template <int BLOCKS, int COLUMNS>
INLINE void tile_scores(
    const Attention& a, const Keys<bf16>& keys, const float* q, long first, long end, const Areas& areas) {
  long steps[2], q_block = a.dim / depth * tile_floats;
  const bf16* k[2];
  for (long i = 0; i < 2; i++) {
    k[i] = load_keys(a, keys, first + i * side, end, areas.keys + i * side * a.dim, &steps[i]);
  }
  written();
  _tile_zero(0);
  _tile_zero(1);
  if (BLOCKS == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (long d = 0; d < a.dim; d += depth, q += tile_floats) {
    _tile_loadd(4, k[0] + d, 2 * steps[0]);
    _tile_loadd(6, q, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, k[1] + d, 2 * steps[1]);
    _tile_dpbf16ps(1, 5, 6);
    if (BLOCKS == 2) {
      _tile_loadd(7, q + q_block, 64);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  float* to = areas.scores[0] + first * COLUMNS;
  _tile_stored(0, to, 4 * COLUMNS);
  _tile_stored(1, to + side * COLUMNS, 4 * COLUMNS);
  if (BLOCKS == 2) {
    to = areas.scores[1] + first * COLUMNS;
    _tile_stored(2, to, 4 * COLUMNS);
    _tile_stored(3, to + side * COLUMNS, 4 * COLUMNS);
  }
}

// One vector of scores, from position `key` of the chunk on: scaled, capped, with the slopes, and masked if the mask is an
// array.
template <int COLUMNS>
INLINE Lanes adjusted(const Attention& a, long c, long query, long key, const Ints& first, const Ints& last, Lanes s) {
  s *= a.scale;
  if (a.cap != 0) {
    s = a.cap * tanh(s / a.cap);
  }
  if (a.slopes != nullptr) {
    for (int l = 0; l < width; l++) {
      long r = least(query + l % COLUMNS, a.queries - 1), own = a.at + r / a.group;
      s[l] += a.slopes[r % a.group * a.slope_step] * static_cast<float>(c * chunk + key + l / COLUMNS - own);
    }
  }
  if (a.seen != nullptr || a.added != nullptr) {
    for (int l = 0; l < width; l++) {
      long r = query + l % COLUMNS;
      long at = r / a.group * a.mask_token + r % a.group * a.mask_head + (c * chunk + key + l / COLUMNS) * a.mask_slot;
      if (key >= first[l] && key < last[l]) {
        s[l] = a.added != nullptr ? s[l] + a.added[at] : a.seen[at] ? s[l] : lowest;
      }
    }
  }
  return s;
}

// Converts the scores of the keys [begin, end) (multiples of 32) to weights. A vector has one key for 16 queries, or
// two, four or eight keys for fewer queries. The weights of every eighth key have an accumulator of their own, so that
// the order of the sum is the same for all numbers of queries.
template <int COLUMNS>
void weigh_tile(const Attention& a, long c, long query, long begin, long end, float* x, float* to, const Partial& out) {
  constexpr int at_once = width / COLUMNS, parts = 8 / at_once;
  long n = least(COLUMNS, a.queries - query);
  Ints first, last;
  long all_from = 0, all_to = chunk;
  for (int l = 0; l < width; l++) {
    Span span(a, c, query + least(l % COLUMNS, n - 1));
    first[l] = static_cast<int32_t>(span.begin) - l / COLUMNS;
    last[l] = static_cast<int32_t>(l % COLUMNS < n ? span.end : 0) - l / COLUMNS;
    all_from = most(all_from, span.begin);
    all_to = least(all_to, span.end);
  }
  // Without a cap, slopes or mask, the scale is multiplied into the factor of the exponent.
  const bool plain = a.scale > 0 && a.cap == 0 && a.slopes == nullptr && a.seen == nullptr && a.added == nullptr;
  Lanes best = all(lowest);
  for (long i = begin; i < end; i += at_once) {
    Lanes s = load(x + i * COLUMNS);
    bool is_edge = i < all_from || i + at_once > all_to;
    if (!plain) {
      s = adjusted<COLUMNS>(a, c, query, i, first, last, s);
    }
    if (is_edge) {
      Ints at = all(static_cast<int32_t>(i));
      s = choose((at >= first) & (at < last), s, all(outside));
    }
    if (is_edge || !plain) {
      store(x + i * COLUMNS, s);
    }
    best = larger(s, best);
  }
  for (int by = width / 2; by >= COLUMNS; by /= 2) {
    best = larger(best, turned(best, by));
  }
  // The mask hides all keys of these queries, or there are none. Hidden keys have weights of 1, and positions outside the
  // span 0. The unit is 1, because another one times `lowest` is infinite.
  Ints unseen = best == all(lowest);
  const Lanes unit = choose(unseen, all(1.0f), all(1.44269504f * (plain ? a.scale : 1))), zero = -best * unit;
  auto weight = [&](const float* score) __attribute__((always_inline)) { return exp2_near(fma(load(score), unit, zero)); };
  Lanes sums[parts] = {};
  for (long i = begin; i < end; i += depth) {
    const float* scores = x + i * COLUMNS;
    float* rows = to + i / depth * tile_floats;
    __m512i pairs[COLUMNS];
#pragma GCC unroll 16
    for (int j = 0; j < COLUMNS; j++) {
      Lanes even = weight(scores + 2 * j * width), odd = weight(scores + (2 * j + 1) * width);
      sums[2 * j % parts] += even;
      sums[(2 * j + 1) % parts] += odd;
      pairs[j] = cast<__m512i>(_mm512_cvtne2ps_pbh(cast<__m512>(odd), cast<__m512>(even)));
    }
    if constexpr (COLUMNS == side) {
#pragma GCC unroll 16
      for (int j = 0; j < side; j++) {
        pairs[j] = paired(pairs[j]);
      }
      transpose(pairs);
#pragma GCC unroll 16
      for (int j = 0; j < side; j++) {
        _mm512_storeu_si512(rows + j * side, pairs[j]);
      }
    } else {
      store_rows<COLUMNS>(pairs, rows, side);
    }
  }
#pragma GCC unroll 4
  for (int half = parts / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
    for (int j = 0; j < half; j++) {
      sums[j] += sums[j + half];
    }
  }
  Lanes sum = sums[0];
  for (int by = width / 2; by >= COLUMNS; by /= 2) {
    sum += turned(sum, by);
  }
  store_part(out.largest + query, choose(unseen, best, plain ? a.scale * best : best), n);
  store_part(out.sum + query, sum, n);
}

// Sums the weighted values: 16 or 32 elements from `d` on, for one or two blocks of queries.
template <int BLOCKS, int COLS>
INLINE void tile_values(
    const Attention& a, const Areas& areas, long begin, long end, long d, float* to) {
  long step = a.value_dim / side * tile_floats;
  _tile_zero(2);
  _tile_zero(3);
  if (BLOCKS == 2) {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (long b = begin / depth; b < end / depth; b++) {
    const float* v = areas.values + b * step + d / side * tile_floats;
    _tile_loadd(7, areas.weights[0] + b * tile_floats, 64);
    _tile_loadd(4, v, 64);
    _tile_dpbf16ps(2, 7, 4);
    if (COLS == 2) {
      _tile_loadd(5, v + tile_floats, 64);
      _tile_dpbf16ps(3, 7, 5);
    }
    if (BLOCKS == 2) {
      _tile_loadd(6, areas.weights[1] + b * tile_floats, 64);
      _tile_dpbf16ps(0, 6, 4);
      if (COLS == 2) {
        _tile_dpbf16ps(1, 6, 5);
      }
    }
  }
  long row = 4 * a.value_dim;
  _tile_stored(2, to + d, row);
  if (COLS == 2) {
    _tile_stored(3, to + d + side, row);
  }
  if (BLOCKS == 2) {
    _tile_stored(0, to + side * a.value_dim + d, row);
    if (COLS == 2) {
      _tile_stored(1, to + side * a.value_dim + d + side, row);
    }
  }
}

template <int BLOCKS, int COLUMNS>
void tile_queries_of(
    const Attention& a, const float* q, long c, long query, const Keys<bf16>& keys, const Areas& areas, const Partial& to) {
  long begin = chunk, last = 0, n = least(BLOCKS * COLUMNS, a.queries - query);
  for (long i = 0; i < n; i++) {
    Span span(a, c, query + i);
    if (!span.is_empty()) {
      begin = least(begin, span.begin / depth * depth);
      last = most(last, span.end);
    }
  }
  if (begin >= last) {
    for (long i = 0; i < n; i++) {
      to.largest[query + i] = lowest;
      to.sum[query + i] = 0;
    }
    return;
  }
  long end = (last + depth - 1) / depth * depth;
  q += query / side * (a.dim / depth) * tile_floats;
  for (long first = begin; first < end; first += depth) {
    tile_scores<BLOCKS, COLUMNS>(a, keys, q, first, last, areas);
  }
  for (long i = 0; i < BLOCKS; i++) {
    weigh_tile<COLUMNS>(a, c, query + i * side, begin, end, areas.scores[i], areas.weights[i], to);
  }
  written();
  float* values = to.values + query * a.value_dim;
  long d = 0;
  for (; d + 2 * side <= a.value_dim; d += 2 * side) {
    tile_values<BLOCKS, 2>(a, areas, begin, end, d, values);
  }
  if (d < a.value_dim) {
    tile_values<BLOCKS, 1>(a, areas, begin, end, d, values);
  }
}

// All queries, in blocks of 16, or in one block of COLUMNS if there are fewer.
template <int COLUMNS>
void tile_all(
    const Attention& a, const float* q, long c, const Keys<bf16>& keys, const Areas& areas, const Partial& to) {
  const TileConfig config(COLUMNS);
  written();
  _tile_loadconfig(&config);
  long query = 0;
  if constexpr (COLUMNS == side) {
    for (; query + side < a.queries; query += 2 * side) {
      tile_queries_of<2, side>(a, q, c, query, keys, areas, to);
    }
  }
  if (query < a.queries) {
    tile_queries_of<1, COLUMNS>(a, q, c, query, keys, areas, to);
  }
  _tile_release();
}

void tiled_chunk(const Attention& a, const float* q, long c, float* work, const Partial& to) {
  Areas areas(a, work);
  long begin = chunk, end = 0;
  for (long i = 0; i < a.queries; i++) {
    Span span(a, c, i);
    if (!span.is_empty()) {
      begin = least(begin, span.begin);
      end = most(end, span.end);
    }
  }
  Keys<bf16> keys(a, c, begin, end);
  for (long first = begin / depth * depth; first < end; first += depth) {
    load_values(a, keys, first, begin, end, areas.values + first / depth * (a.value_dim / side) * tile_floats);
  }
  auto multiply = a.queries <= 2 ? tile_all<2>
      : a.queries <= 4       ? tile_all<4>
      : a.queries <= 8       ? tile_all<8>
                             : tile_all<side>;
  multiply(a, q, c, keys, areas, to);
}

constexpr AttentionKernels tiled = {tiled_size, tiled_work_size, load_tiles, tiled_chunk, finish_values<bf16>};
constexpr AttentionKernels tiled_packed = {
    tiled_size, packed_work_size<bf16, tiled_work_size>, load_tiles, packed_chunk<bf16, bf16, tiled_chunk>,
    finish_values<bf16>};

} // namespace

const AttentionKernels* attention_amx(bool is_packed) {
  return is_packed ? &tiled_packed : &tiled;
}

} // namespace mlxrs::ops

#else

const mlxrs::ops::AttentionKernels* mlxrs::ops::attention_amx(bool) {
  return nullptr;
}

#endif
