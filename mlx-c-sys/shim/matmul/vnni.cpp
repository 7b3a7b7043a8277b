#include "vnni.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#include <immintrin.h>

#include <tuple>
#include <utility>

#include "floats.h"
#include "turn.h"
#include "unpack.h"

namespace mlxrs::matmul {
namespace {

#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE

// Rows of weights whose sums are finished together, one in each lane of a vector.
constexpr long lanes = 16;
// The largest whole number, whose high byte is 127.
constexpr float largest = 127 * 256 + 127;

INLINE long smaller(long a, long b) {
  return a < b ? a : b;
}
INLINE long round_up(long n, long unit) {
  return (n + unit - 1) / unit * unit;
}
INLINE __mmask16 first_lanes(long n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : n > 0 ? (1u << n) - 1 : 0);
}

// Brings memory near that will be wanted soon: n bytes from `at` on.
INLINE void fetch(const void* at, long n = 1) {
  for (long i = 0; i < n; i += 64) {
    _mm_prefetch(static_cast<const char*>(at) + i, _MM_HINT_T1);
  }
}

// 16 elements of x.
INLINE __m512 sixteen(Float type, const uint16_t* x) {
  __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  if (type == Float::f16) {
    return _mm512_cvtph_ps(halves);
  }
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// A row of x: for each vector of codes the high bytes, then the low ones; then for each group the scale; then for each the
// sum. A vector has 64 codes, or 128 of 4 bits, which make two vectors of bytes: the even ones and the odd ones.
struct Row {
  const int8_t* bytes;
  const float *scales, *sums;

  Row(const void* packed, const Weights& w)
      : bytes(static_cast<const int8_t*>(packed)),
        scales(reinterpret_cast<const float*>(bytes + 2 * round_up(w.k, 128))),
        sums(scales + w.groups()) {}
  static long size(const Weights& w) {
    return round_up(2 * round_up(w.k, 128) + 2 * w.groups() * static_cast<long>(sizeof(float)), 64);
  }
};

long packed_size(const Weights& w, long block) {
  return block * Row::size(w);
}

// A group of x as whole numbers to `to`, which is aligned to 64; their scale and the sum that they stand for. What is not
// finite makes the scale NaN.
INLINE std::pair<float, float> to_whole(Float type, const uint16_t* x, long n, int16_t* to) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  // As bits, NaN is larger than infinity, and infinity than any number.
  __m512i most = _mm512_setzero_si512();
  for (long i = 0; i < n; i += 16) {
    most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(sixteen(type, x + i)), magnitude));
  }
  float bound = as_float(static_cast<uint32_t>(_mm512_reduce_max_epi32(most)));
  bool is_finite = bound <= 0x1.fffffep127f, is_zero = bound < 0x1p-100f;
  // Zero times what is not finite is NaN, which becomes the smallest of whole numbers: the scale tells the truth.
  __m512 factor = _mm512_set1_ps(is_finite && !is_zero ? largest / bound : 0);
  __m512i sum = _mm512_setzero_si512();
  auto part = [&](const uint16_t* x) ALWAYS_INLINE {
    __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(sixteen(type, x), factor));
    sum = _mm512_add_epi32(sum, v);
    return _mm512_cvtepi32_epi16(v);
  };
  for (long i = 0; i < n; i += 32) {
    __m512i first = _mm512_castsi256_si512(part(x + i));
    _mm512_store_si512(to + i, _mm512_inserti64x4(first, part(x + i + 16), 1));
  }
  float scale = !is_finite ? as_float(0x7fc00000) : is_zero ? 0 : bound / largest;
  return {scale, static_cast<float>(_mm512_reduce_add_epi32(sum)) * scale};
}

// The high and the low bytes of 64 whole numbers, in the order that `places` tell: 2 i for number i.
INLINE void to_bytes(const int16_t* x, __m512i places, __m512i& high, __m512i& low) {
  const __m512i half = _mm512_set1_epi16(128);
  __m512i x0 = _mm512_load_si512(x), x1 = _mm512_load_si512(x + 32);
  // The low byte is from -128 to 127, and the high one is what is left.
  __m512i h0 = _mm512_srai_epi16(_mm512_add_epi16(x0, half), 8), h1 = _mm512_srai_epi16(_mm512_add_epi16(x1, half), 8);
  high = _mm512_permutex2var_epi8(h0, places, h1);
  low = _mm512_permutex2var_epi8(x0, places, x1);
}

void pack(const Product& p, const Weights& w, long first, long rows, void* packed) {
  // Two groups of 64, four of 32 or one.
  constexpr long part = 128;
  bool nibbles = w.bits == 4;
  alignas(64) uint8_t even_first[64];
  for (int i = 0; i < 64; i++) {
    even_first[i] = static_cast<uint8_t>(2 * (!nibbles ? i : i < 32 ? 2 * i : 2 * i - 63));
  }
  const __m512i places = _mm512_load_si512(even_first);
  for (long r = 0; r < rows; r++) {
    char* to = static_cast<char*>(packed) + r * Row::size(w);
    if (first + r >= p.m) {
      std::memset(to, 0, Row::size(w));
      continue;
    }
    Row row(to, w);
    auto *scales = const_cast<float*>(row.scales), *sums = const_cast<float*>(row.sums);
    auto* bytes = reinterpret_cast<__m512i*>(to);
    auto* x = static_cast<const uint16_t*>(p.x[first + r]);
    for (long at = 0; at < w.k; at += part, bytes += 4) {
      alignas(64) int16_t whole[part];
      long there = smaller(part, w.k - at);
      for (long i = there; i < part; i += 32) {
        _mm512_store_si512(whole + i, _mm512_setzero_si512());
      }
      for (long i = 0; i < there; i += w.group) {
        std::tie(*scales++, *sums++) = to_whole(p.type, x + at + i, w.group, whole + i);
      }
      __m512i high, low, next_high, next_low;
      to_bytes(whole, places, high, low);
      to_bytes(whole + 64, places, next_high, next_low);
      bytes[0] = nibbles ? _mm512_shuffle_i64x2(high, next_high, 0x44) : high;
      bytes[1] = nibbles ? _mm512_shuffle_i64x2(high, next_high, 0xee) : low;
      bytes[2] = nibbles ? _mm512_shuffle_i64x2(low, next_low, 0x44) : next_high;
      bytes[3] = nibbles ? _mm512_shuffle_i64x2(low, next_low, 0xee) : next_low;
    }
  }
}

// Of V vectors, each of which has 16 / V groups side by side, the sums of the 16 groups in the order of the vectors.
template <int V>
INLINE __m512i sums_of(__m512i (&v)[V]) {
  auto halve = [&](int n) ALWAYS_INLINE {
#pragma GCC unroll 8
    for (int i = 0; i < n; i += 2) {
      __m512i halves = _mm512_shuffle_i32x4(v[i], v[i + 1], 0x88);
      v[i / 2] = _mm512_add_epi32(halves, _mm512_shuffle_i32x4(v[i], v[i + 1], 0xdd));
    }
  };
  if constexpr (V == 16) {
    halve(16);
  }
  if constexpr (V >= 8) {
    halve(8);
  }
  __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  // Lane 4 j + i has part j of vector i, which is group 4 i + j.
  __m512i sums = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, sums);
}

// A row of weights is read while a line so far behind is fetched: in one stretch over all rows, which the machine foresees.
constexpr long ahead = 8192;

// Sums of whole numbers of a row's next 16 groups for R rows of x: V vectors of sums, each of LOADS vectors of codes, of
// which `n` are left in the row. BITS is 4, 8, or 0 for any width.
template <int BITS, int V, int LOADS, int R>
INLINE void sixteen_groups(const Unpack& unpack, const uint8_t* w, long n, const int8_t* const* x, __m512i* sums) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const long in_vector = BITS == 4 ? 128 : 64, bytes = BITS == 0 ? 8 * unpack.bits : 64;
  __m512i v[R][V];
#pragma GCC unroll 16
  for (int i = 0; i < V; i++) {
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      v[r][i] = _mm512_setzero_si512();
    }
    if (i * LOADS * in_vector >= n) {
      continue;
    }
    __m512i codes[LOADS];
#pragma GCC unroll 2
    for (int j = 0; j < LOADS; j++) {
      const uint8_t* from = w + (i * LOADS + j) * bytes;
      long left = n - (i * LOADS + j) * in_vector;
      fetch(from + ahead);
      codes[j] = BITS == 0 ? unpack(from, left)
          : left >= in_vector ? _mm512_loadu_si512(from)
                              : _mm512_maskz_loadu_epi8(first_bytes(left * (BITS == 4 ? 4 : 8) / 8), from);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      auto at = [&](int i) ALWAYS_INLINE { return _mm512_load_si512(x[r] + i * 64); };
      __m512i sum = v[r][i];
      if constexpr (BITS == 4) {
        __m512i even = _mm512_and_si512(codes[0], nibble), odd = _mm512_and_si512(_mm512_srli_epi16(codes[0], 4), nibble);
        sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even, at(4 * i)), odd, at(4 * i + 1));
        sum = _mm512_slli_epi32(sum, 8);
        v[r][i] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even, at(4 * i + 2)), odd, at(4 * i + 3));
        continue;
      }
#pragma GCC unroll 2
      for (int j = 0; j < LOADS; j++) {
        sum = _mm512_dpbusd_epi32(sum, codes[j], at(2 * (i * LOADS + j)));
      }
      sum = _mm512_slli_epi32(sum, 8);
#pragma GCC unroll 2
      for (int j = 0; j < LOADS; j++) {
        sum = _mm512_dpbusd_epi32(sum, codes[j], at(2 * (i * LOADS + j) + 1));
      }
      v[r][i] = sum;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) {
    sums[r] = sums_of<V>(v[r]);
  }
}

// The sums of a row of weights with R rows of x, group by group, to sums[r * distance ...].
template <int BITS, int V, int LOADS, int R>
void row_of(const Weights& w, const Unpack& unpack, long row, const void* packed, int32_t* sums, long distance) {
  constexpr long step = V * LOADS * (BITS == 4 ? 128 : 64);
  const uint8_t* codes = static_cast<const uint8_t*>(w.data) + row * w.row_bytes();
  const int8_t* x[R];
  for (int r = 0; r < R; r++) {
    x[r] = Row(static_cast<const char*>(packed) + r * Row::size(w), w).bytes;
  }
  for (long k = 0; k < w.k; k += step, codes += step * w.bits / 8, sums += 16) {
    __m512i s[R];
    if (w.k - k >= step) {
      sixteen_groups<BITS, V, LOADS, R>(unpack, codes, step, x, s);
    } else {
      sixteen_groups<BITS, V, LOADS, R>(unpack, codes, w.k - k, x, s);
    }
    for (int r = 0; r < R; r++) {
      _mm512_store_si512(sums + r * distance, s[r]);
      x[r] += 2 * step;
    }
  }
}

using Sums = void (*)(const Weights&, const Unpack&, long, const void*, int32_t*, long);

template <int BITS, int R>
Sums sums_of_bytes(const Weights& w) {
  return w.group == 32 ? row_of<BITS, 8, 1, R> : w.group == 64 ? row_of<BITS, 16, 1, R> : row_of<BITS, 16, 2, R>;
}
template <int R>
Sums sums_for(const Weights& w) {
  if (w.bits == 4) {
    return w.group == 32 ? row_of<4, 4, 1, R> : w.group == 64 ? row_of<4, 8, 1, R> : row_of<4, 16, 1, R>;
  }
  return w.bits == 8 ? sums_of_bytes<8, R>(w) : sums_of_bytes<0, R>(w);
}

// 16 rows of words, `n` in each at distances of `row` bytes, to columns. Behind the last row that there is, it stands again.
INLINE void load_turned(const void* from, long row, long rows, long n, __m512i (&to)[16]) {
  for (long i = 0; i < lanes; i++) {
    to[i] = _mm512_maskz_loadu_epi32(first_lanes(n), static_cast<const char*>(from) + smaller(i, rows - 1) * row);
  }
  turn(to);
}

// The scales and biases of groups [g, g + n) of 16 rows, each group's in a vector.
INLINE void load_scales(
    const Weights& w, long row, long rows, long g, long n, __m512 (&scales)[16], __m512 (&biases)[16]) {
  long size = w.scale_type == Float::f32 ? 4 : 2, bytes = w.groups() * size, at = row * bytes + g * size;
  auto *first = static_cast<const char*>(w.scales) + at, *second = static_cast<const char*>(w.biases) + at;
  __m512i words[16];
  if (w.scale_type == Float::f32) {
    for (auto [from, to] : {std::pair(first, &scales), std::pair(second, &biases)}) {
      load_turned(from, bytes, rows, n, words);
      for (long i = 0; i < 16; i++) {
        (*to)[i] = _mm512_castsi512_ps(words[i]);
      }
    }
    return;
  }
  // Both in one go, two groups in a word.
  for (long i = 0; i < lanes; i++) {
    long r = smaller(i, rows - 1) * bytes;
    auto load = [&](const char* from) ALWAYS_INLINE { return _mm256_maskz_loadu_epi16(first_lanes(n), from + r); };
    words[i] = _mm512_inserti64x4(_mm512_castsi256_si512(load(first)), load(second), 1);
  }
  turn(words);
  auto to_f32 = [&](__m512i v, __m512& even, __m512& odd) ALWAYS_INLINE {
    if (w.scale_type == Float::bf16) {
      even = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
      odd = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
    } else {
      even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
      odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16)));
    }
  };
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    to_f32(words[i], scales[2 * i], scales[2 * i + 1]);
    to_f32(words[8 + i], biases[2 * i], biases[2 * i + 1]);
  }
}

// Rounds the first n of 16 sums and writes them.
INLINE void write(Float type, __m512 sums, long n, void* to) {
  __m256i halves;
  if (type == Float::f16) {
    halves = _mm512_cvtps_ph(sums, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  } else {
    __m512i bits = _mm512_castps_si512(sums), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(sums, sums, _CMP_UNORD_Q);
    halves = _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 16), nan, _mm512_set1_epi32(0x7fc0)));
  }
  _mm256_mask_storeu_epi16(to, first_lanes(n), halves);
}

// Groups of a row of weights, with room for whole vectors.
INLINE long sums_in_row(const Weights& w) {
  return round_up(w.groups(), 16);
}

template <int R>
void rows_by(const Product& p, const Weights& w, const void* packed, long row, long row_end, void* memory) {
  const Unpack unpack(w.bits);
  Sums sums_of_row = sums_for<R>(w);
  auto* sums = static_cast<int32_t*>(memory);
  long in_row = sums_in_row(w), distance = lanes * in_row, scales_in_row = w.groups() * (w.scale_type == Float::f32 ? 4 : 2);
  for (; row < row_end; row += lanes) {
    long rows = smaller(lanes, row_end - row);
    for (auto* next : {w.scales, w.biases}) {
      fetch(static_cast<const char*>(next) + (row + lanes) * scales_in_row, lanes * scales_in_row);
    }
    for (long first = 0; first < p.m; first += R) {
      const char* block = static_cast<const char*>(packed) + first * Row::size(w);
      for (long i = 0; i < rows; i++) {
        sums_of_row(w, unpack, row + i, block, sums + i * in_row, distance);
      }
      __m512 y[R];
      for (int r = 0; r < R; r++) {
        y[r] = _mm512_setzero_ps();
      }
      for (long g = 0; g < w.groups(); g += 16) {
        long n = smaller(16, w.groups() - g);
        __m512 scales[16], biases[16];
        load_scales(w, row, rows, g, n, scales, biases);
        for (int r = 0; r < R; r++) {
          Row x(block + r * Row::size(w), w);
          __m512i products[16];
          load_turned(sums + r * distance + g, in_row * 4, rows, 16, products);
#pragma GCC unroll 16
          for (int i = 0; i < 16; i++) {
            if (i < n) {
              __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(products[i]), _mm512_set1_ps(x.scales[g + i]));
              y[r] = _mm512_fmadd_ps(product, scales[i], y[r]);
              y[r] = _mm512_fmadd_ps(_mm512_set1_ps(x.sums[g + i]), biases[i], y[r]);
            }
          }
        }
      }
      for (long r = 0; r < smaller(R, p.m - first); r++) {
        write(p.type, y[r], rows, static_cast<uint16_t*>(p.y[first + r]) + row);
      }
    }
  }
}

void rows(const Product& p, const Weights& w, const void* packed, long row, long row_end, void* scratch) {
  constexpr decltype(Vnni::rows) by[] = {rows_by<1>, rows_by<2>, rows_by<3>, rows_by<4>};
  by[Vnni::block(p.m) - 1](p, w, packed, row, row_end, scratch);
}

long scratch_size(const Product& p, const Weights& w) {
  return Vnni::block(p.m) * lanes * sums_in_row(w) * static_cast<long>(sizeof(int32_t));
}

constexpr Vnni kernels{packed_size, pack, scratch_size, rows};

} // namespace

const Vnni* vnni() {
  return &kernels;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::Vnni* mlxrs::matmul::vnni() {
  return nullptr;
}

#endif
