#include "whole.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#include <immintrin.h>

#include "floats_avx512.h"
#include "turn.h"
#include "unpack.h"
#include "whole_avx512.h"
#include "whole_rows.h"

namespace mlxrs::matmul {
namespace {

// Brings memory near that will be wanted soon: n bytes from `at` on.
INLINE void fetch(const void* at, long n) {
  for (long i = 0; i < n; i += 64) {
    _mm_prefetch(static_cast<const char*>(at) + i, _MM_HINT_T1);
  }
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
        auto [scale, sum] = to_whole(p.type, x + at + i, w.group, whole + i);
        *scales++ = scale;
        *sums++ = sum;
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

// The sums of the lanes of 16 vectors.
INLINE __m512 sums_of(__m512 (&v)[lanes]) {
#pragma GCC unroll 2
  for (int n = lanes; n > 4; n /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n; i += 2) {
      __m512 halves = _mm512_shuffle_f32x4(v[i], v[i + 1], 0x88);
      v[i / 2] = _mm512_add_ps(halves, _mm512_shuffle_f32x4(v[i], v[i + 1], 0xdd));
    }
  }
  auto pairs = [](__m512 a, __m512 b) ALWAYS_INLINE {
    return _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  };
  __m512d a = pairs(v[0], v[1]), b = pairs(v[2], v[3]);
  __m512 low = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), high = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
  // Lane 4 j + i has the sum of vector 4 i + j.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_ps(order, _mm512_add_ps(low, high));
}

// How the codes of 16 groups lie in vectors.
template <int BITS, int GROUP>
struct Layout {
  static constexpr long in_vector = BITS == 4 ? 128 : 64, codes = 16 * GROUP, vectors = codes / in_vector;
  // Of which group each lane's codes are.
  alignas(64) int32_t groups[vectors][lanes];

  constexpr Layout() : groups() {
    for (long v = 0; v < vectors; v++) {
      for (long lane = 0; lane < lanes; lane++) {
        groups[v][lane] = static_cast<int32_t>((v * in_vector + lane * (in_vector / lanes)) / GROUP);
      }
    }
  }
};
template <int BITS, int GROUP>
constexpr Layout<BITS, GROUP> layout;

struct SixteenGroups {
  __m512 scale, bias;
};

// Groups [at, at + 16), as far as they are there. Those of E2M1 have 32 elements and scales of E8M0 (mxfp4), or 16 and E4M3 (nvfp4).
template <Form FORM, int GROUP>
INLINE SixteenGroups sixteen_groups(const Weights& w, long at, __mmask16 there) {
  if constexpr (FORM == Form::e2m1) {
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, static_cast<const uint8_t*>(w.scales) + at));
    __m512 half = _mm512_mul_ps(GROUP == 16 ? from_e4m3s(bytes) : from_e8m0s(bytes), _mm512_set1_ps(0.5f));
    return {half, _mm512_mul_ps(half, _mm512_set1_ps(-e2m1_zero))};
  }
  return {sixteen(w.scale_type, w.scales, at, there), sixteen(w.scale_type, w.biases, at, there)};
}

// Adds the products of Q rows of weights with R rows of x over 16 groups, or what is left of them: n codes. Each lane's sum of
// whole numbers is scaled as its group is.
template <Form FORM, int GROUP, int Q, int R>
INLINE void add_groups(
    const Unpack& unpack, const uint8_t* const (&w)[Q], const int8_t* const (&x)[R], long n, const __m512 (&scales)[Q][R],
    __m512 (&sums)[Q][R]) {
  constexpr int BITS = bits_of(FORM);
  using Layout = Layout<BITS, GROUP>;
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(e2m1_codes)));
  const long bytes = BITS == 0 ? 8 * unpack.bits : 64;
#pragma GCC unroll 8
  for (long i = 0; i < Layout::vectors; i++) {
    long left = n - i * Layout::in_vector;
    if (left <= 0) {
      return;
    }
    const __m512i groups = _mm512_load_si512(layout<BITS, GROUP>.groups[i]);
    // x in registers, for all rows of weights: else GCC loads it for each of them.
    constexpr int planes = BITS == 4 ? 4 : 2;
    __m512i of_x[R][planes];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
      for (int j = 0; j < planes; j++) {
        of_x[r][j] = _mm512_load_si512(x[r] + (planes * i + j) * 64);
        if constexpr (R * planes <= 8) {
          asm("" : "+v"(of_x[r][j]));
        }
      }
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
      const uint8_t* from = w[q] + i * bytes;
      _mm_prefetch(reinterpret_cast<const char*>(from + ahead), _MM_HINT_T0);
      __m512i codes = BITS == 0           ? unpack(from, left)
          : left >= Layout::in_vector ? _mm512_loadu_si512(from)
                                      : _mm512_maskz_loadu_epi8(first_bytes(left * BITS / 8), from);
      // And codes once, not for each use.
      asm("" : "+v"(codes));
      __m512i even = _mm512_and_si512(codes, nibble), odd = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
      if constexpr (FORM == Form::e2m1) {
        even = _mm512_shuffle_epi8(table, even);
        odd = _mm512_shuffle_epi8(table, odd);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        // Products with plane j of x, the high bytes or the low ones.
        auto add = [&](__m512i sum, int j) ALWAYS_INLINE {
          if constexpr (BITS != 4) {
            return _mm512_dpbusd_epi32(sum, codes, of_x[r][j]);
          } else {
            return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even, of_x[r][2 * j]), odd, of_x[r][2 * j + 1]);
          }
        };
        __m512i sum = add(_mm512_slli_epi32(add(_mm512_setzero_si512(), 0), 8), 1);
        __m512 scale = _mm512_permutexvar_ps(groups, scales[q][r]);
        sums[q][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, sums[q][r]);
      }
    }
  }
}

// The products of Q rows of weights, `distance` apart, with R rows of x, as 16 parts of a sum each.
template <Form FORM, int GROUP, int Q, int R>
INLINE void rows_of(const Weights& w, const Unpack& unpack, long row, long distance, const void* packed, __m512 (&sums)[Q][R]) {
  constexpr long step = Layout<bits_of(FORM), GROUP>::codes;
  const long groups = w.k / GROUP;
  const uint8_t* codes[Q];
  const int8_t* x[R];
  const float *x_scales[R], *x_sums[R];
  for (int q = 0; q < Q; q++) {
    codes[q] = static_cast<const uint8_t*>(w.data) + (row + q * distance) * w.row_bytes();
  }
  for (int r = 0; r < R; r++) {
    Row of_x(static_cast<const char*>(packed) + r * Row::size(w), w);
    x[r] = of_x.bytes;
    x_scales[r] = of_x.scales;
    x_sums[r] = of_x.sums;
    for (int q = 0; q < Q; q++) {
      sums[q][r] = _mm512_setzero_ps();
    }
  }
  for (long k = 0, g = 0; k < w.k; k += step, g += 16) {
    __mmask16 there = first_lanes(groups - g);
    __m512 scales[Q][R];
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
      long at = (row + q * distance) * groups + g;
      const auto [scale, bias] = sixteen_groups<FORM, GROUP>(w, at, there);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        scales[q][r] = _mm512_mul_ps(scale, _mm512_maskz_loadu_ps(there, x_scales[r] + g));
        sums[q][r] = _mm512_fmadd_ps(bias, _mm512_maskz_loadu_ps(there, x_sums[r] + g), sums[q][r]);
      }
    }
    if (w.k - k >= step) {
      add_groups<FORM, GROUP>(unpack, codes, x, step, scales, sums);
    } else {
      add_groups<FORM, GROUP>(unpack, codes, x, w.k - k, scales, sums);
    }
    for (auto& at : codes) {
      at += step * w.bits / 8;
    }
    for (auto& at : x) {
      at += 2 * step;
    }
  }
}

// y for Q times at most 16 rows of weights, `distance` apart, and R rows of x, of which there are p.m.
template <Form FORM, int GROUP, int Q, int R>
void lanes_of(const Product& p, const Weights& w, long first, const void* packed, long row, long rows, long distance) {
  const Unpack unpack(w.bits);
  const long bytes = scale_bytes(w);
  __m512 parts[Q][R][lanes];
  for (long i = 0; i < lanes; i++) {
    // Behind the last row that there is, it stands again.
    __m512 sums[Q][R];
    rows_of<FORM, GROUP>(w, unpack, row + smaller(i, rows - 1), distance, packed, sums);
    for (int q = 0; q < Q; q++) {
      for (int r = 0; r < R; r++) {
        parts[q][r][i] = sums[q][r];
      }
      const long next = (row + q * distance + i + lanes) * bytes;
      fetch(static_cast<const char*>(w.scales) + next, bytes);
      if constexpr (FORM != Form::e2m1) {
        fetch(static_cast<const char*>(w.biases) + next, bytes);
      }
    }
  }
  for (long q = 0; q < Q; q++) {
    for (long r = 0; r < smaller(R, p.m - first); r++) {
      write(p.type, sums_of(parts[q][r]), rows, static_cast<uint16_t*>(p.y[first + r]) + row + q * distance);
    }
  }
}

// Rows of x as two planes of bytes.
struct Planes {
  static constexpr long least_group = 16;

  static constexpr int beside(Form form, int rows) {
    return bits_of(form) == 4 && rows > 2 ? 2 : 4;
  }
  static long row_size(const Weights& w) {
    return Row::size(w);
  }
  static void pack(const Product& p, const Weights& w, long first, long rows, void* packed) {
    return matmul::pack(p, w, first, rows, packed);
  }
  template <Form FORM, int GROUP, int Q, int R>
  static void lanes_of(const Product& p, const Weights& w, long first, const char* packed, long row, long rows, long distance) {
    return matmul::lanes_of<FORM, GROUP, Q, R>(p, w, first, packed, row, rows, distance);
  }
};

} // namespace

const Whole* whole_vnni() {
  return &whole_of<Planes>;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::Whole* mlxrs::matmul::whole_vnni() {
  return nullptr;
}

#endif
