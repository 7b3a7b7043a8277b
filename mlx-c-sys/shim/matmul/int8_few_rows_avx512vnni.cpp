#include "int_kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#include <immintrin.h>

#include <numeric>

#include "runtime/memory.h"
#include "convert_avx512.h"
#include "unpack_avx512.h"
#include "int_avx512.h"
#include "few_rows.h"

namespace mlxrs::matmul {
namespace {

// Codes are multiplied 128 at a time, as two vectors of bytes whose lanes belong to the same groups: the even and odd
// codes for 4 bits, else the first and second halves of all groups.
constexpr long together = 128;
template <int GROUP>
INLINE __m512i halves(__m512i a, __m512i b, bool second) {
  if constexpr (GROUP == 32) {
    return second ? _mm512_shuffle_i32x4(a, b, 0xdd) : _mm512_shuffle_i32x4(a, b, 0x88);
  } else if constexpr (GROUP == 64) {
    return second ? _mm512_shuffle_i32x4(a, b, 0xee) : _mm512_shuffle_i32x4(a, b, 0x44);
  }
  return second ? b : a;
}

// Rows of weights are read as one stream, in steps of 128 codes and of 16 groups. A step may contain the end of a row
// and the start of the next. So a packed row of x is repeated until it ends with a step, and its first steps and groups
// are appended again. A step has two vectors of the high bytes of x and two of the low bytes. One scale and one sum for
// each group follow.
struct Row {
  static constexpr long steps_behind = 4, groups_behind = 16;

  const int8_t* bytes;
  const float *scales, *sums;

  Row(const void* packed, const Weights& w)
      : bytes(static_cast<const int8_t*>(packed)),
        scales(reinterpret_cast<const float*>(bytes + 2 * (period(w) + steps_behind) * together)),
        sums(scales + w.groups() + groups_behind) {}
  // The steps of the repeated row.
  static long period(const Weights& w) {
    return std::lcm(w.k, together) / together;
  }
  static long size(const Weights& w) {
    return round_up(2 * (period(w) + steps_behind) * together + 2 * (w.groups() + groups_behind) * static_cast<long>(sizeof(float)), 64);
  }
};

// The high and the low bytes of 64 integers. `places` has the place 2 i for integer i.
INLINE void to_bytes(const int16_t* x, __m512i places, __m512i& high, __m512i& low) {
  __m512i x0 = _mm512_load_si512(x), x1 = _mm512_load_si512(x + 32);
  high = _mm512_permutex2var_epi8(high_bytes(x0), places, high_bytes(x1));
  low = _mm512_permutex2var_epi8(x0, places, x1);
}

void pack(const Product& p, const Weights& w, long first, long rows, void* packed) {
  const long all = (Row::period(w) + Row::steps_behind) * together, groups = w.groups();
  alignas(64) uint8_t order[64];
  for (int i = 0; i < 64; i++) {
    order[i] = static_cast<uint8_t>(2 * (w.bits != 4 ? i : i < 32 ? 2 * i : 2 * i - 63));
  }
  const __m512i places = _mm512_load_si512(order);
  auto* whole = for_row.of<int16_t>(all);
  for (long r = 0; r < rows; r++) {
    char* at = static_cast<char*>(packed) + r * Row::size(w);
    if (first + r >= p.m) {
      std::memset(at, 0, Row::size(w));
      continue;
    }
    const Row row(at, w);
    auto *scales = const_cast<float*>(row.scales), *sums = const_cast<float*>(row.sums);
    auto* x = static_cast<const uint16_t*>(p.x[first + r]);
    for (long g = 0; g < groups; g++) {
      auto [scale, sum] = to_whole(p.type, x + g * w.group, w.group, whole + g * w.group);
      scales[g] = scale;
      sums[g] = sum;
    }
    for (long i = 0; i < Row::groups_behind; i++) {
      scales[groups + i] = scales[i];
      sums[groups + i] = sums[i];
    }
    for (long k = w.k; k < all; k += smaller(w.k, all - k)) {
      std::memcpy(whole + k, whole, smaller(w.k, all - k) * sizeof(int16_t));
    }
    auto* bytes = reinterpret_cast<__m512i*>(at);
    for (long k = 0; k < all; k += together, bytes += 4) {
      __m512i high, low, next_high, next_low;
      to_bytes(whole + k, places, high, low);
      to_bytes(whole + k + 64, places, next_high, next_low);
      auto write = [&](auto group) ALWAYS_INLINE {
        for (int i = 0; i < 2; i++) {
          bytes[i] = halves<group>(high, next_high, i == 1);
          bytes[2 + i] = halves<group>(low, next_low, i == 1);
        }
      };
      // Even codes come before odd codes, as first halves come before second halves.
      if (w.bits == 4 || w.group == 64) {
        write(std::integral_constant<int, 64>());
      } else if (w.group == 32) {
        write(std::integral_constant<int, 32>());
      } else {
        write(std::integral_constant<int, 128>());
      }
    }
  }
}

// Adds neighbouring lanes: two vectors of sums with WIDE lanes for each group become one vector with half as many lanes
// for each.
template <int WIDE>
INLINE __m512i halved(__m512i a, __m512i b) {
  if constexpr (WIDE == 16) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
  } else if constexpr (WIDE == 8) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  } else if constexpr (WIDE == 4) {
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  } else {
    static_assert(WIDE == 2);
    __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
    return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)), _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
  }
}

// The steps that 16 groups take, which is also the number of lanes of a group in a vector of sums.
constexpr int steps_of(int group) {
  return 16 * group / together;
}

// Q streams of codes, and R rows of x.
template <int Q, int R>
struct Streams {
  const uint8_t* w[Q];
  const int8_t* x[R];

  template <typename Body>
  static INLINE void each(const Body& body) {
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        body(q, r);
      }
    }
  }
};

// Integer sums over the next step of each stream.
template <Form FORM, int GROUP, int Q, int R>
INLINE void multiply(const Unpack& unpack, Streams<Q, R>& streams, __m512i (&sums)[Q][R]) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(e2m1_codes)));
  __m512i codes[Q][2];
#pragma GCC unroll 4
  for (int q = 0; q < Q; q++) {
    const uint8_t*& from = streams.w[q];
    const long half = FORM == Form::any ? 8 * unpack.bits : 64, bytes = bits_of(FORM) == 4 ? half : 2 * half;
    for (long i = 0; i < bytes; i += 64) {
      // Intel CPUs read four streams, and prefetch into L1.
      if constexpr (Q == 4) {
        _mm_prefetch(reinterpret_cast<const char*>(from + ahead + i), _MM_HINT_T0);
      } else {
        _mm_prefetch(reinterpret_cast<const char*>(from + far_ahead + i), _MM_HINT_T1);
      }
    }
    if constexpr (bits_of(FORM) == 4) {
      __m512i both = _mm512_loadu_si512(from);
      codes[q][0] = _mm512_and_si512(both, nibble);
      codes[q][1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
      if constexpr (FORM == Form::e2m1) {
        codes[q][0] = _mm512_shuffle_epi8(table, codes[q][0]);
        codes[q][1] = _mm512_shuffle_epi8(table, codes[q][1]);
      }
    } else {
      __m512i first = FORM == Form::any ? unpack(from, 64) : _mm512_loadu_si512(from);
      __m512i second = FORM == Form::any ? unpack(from + half, 64) : _mm512_loadu_si512(from + half);
      asm("" : "+v"(first), "+v"(second));
      codes[q][0] = halves<GROUP>(first, second, false);
      codes[q][1] = halves<GROUP>(first, second, true);
    }
    from += bytes;
    // Makes GCC compute these once, not at each use.
    asm("" : "+v"(codes[q][0]), "+v"(codes[q][1]));
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) {
    __m512i x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      x[i] = _mm512_load_si512(streams.x[r] + i * 64);
      if constexpr (Q > 1) {
        asm("" : "+v"(x[i]));
      }
    }
    streams.x[r] += 4 * 64;
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
      __m512i high = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[q][0], x[0]), codes[q][1], x[1]);
      __m512i sum = _mm512_dpbusd_epi32(_mm512_slli_epi32(high, 8), codes[q][0], x[2]);
      sums[q][r] = _mm512_dpbusd_epi32(sum, codes[q][1], x[3]);
    }
  }
}

// Integer sums over the next N steps of the steps that 16 groups take. Each group keeps as many lanes as steps are
// left.
template <Form FORM, int GROUP, int N, int Q, int R>
INLINE void multiply_some(const Unpack& unpack, Streams<Q, R>& streams, __m512i (&sums)[Q][R]) {
  if constexpr (N == 1) {
    multiply<FORM, GROUP>(unpack, streams, sums);
  } else {
    __m512i others[Q][R];
    multiply_some<FORM, GROUP, N / 2>(unpack, streams, sums);
    multiply_some<FORM, GROUP, N / 2>(unpack, streams, others);
    constexpr int wide = 2 * steps_of(GROUP) / N;
    streams.each([&](int q, int r) ALWAYS_INLINE { sums[q][r] = halved<wide>(sums[q][r], others[q][r]); });
  }
}

// Integer sums over the next 16 groups of each stream, one group in each lane. `at` is the streams' place in the
// repeated row of x.
template <Form FORM, int GROUP, int Q, int R>
INLINE void multiply_groups(const Unpack& unpack, Streams<Q, R>& streams, long& at, long period, __m512i (&sums)[Q][R]) {
  constexpr int steps = steps_of(GROUP), some = steps < Row::steps_behind ? steps : Row::steps_behind, parts = steps / some;
  __m512i of_parts[parts][Q][R];
#pragma GCC unroll 1
  for (auto& part : of_parts) {
    multiply_some<FORM, GROUP, some>(unpack, streams, part);
    for (at += some; at >= period; at -= period) {
      for (auto& x : streams.x) {
        x -= period * 2 * together;
      }
    }
  }
  // The lane that holds the sum of each group.
  const __m512i places = steps > 2 ? _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
                                   : _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  streams.each([&](int q, int r) ALWAYS_INLINE {
    __m512i sum = of_parts[0][q][r];
    if constexpr (parts == 4) {
      sum = halved<2>(halved<4>(sum, of_parts[1][q][r]), halved<4>(of_parts[2][q][r], of_parts[3][q][r]));
    } else if constexpr (parts == 2) {
      sum = halved<2>(sum, of_parts[1][q][r]);
    }
    sums[q][r] = _mm512_permutexvar_epi32(places, sum);
  });
}

// Computes the term of each group for Q blocks of 16 rows of weights, `distance` apart, and R rows of x. The terms of
// each block and row begin `each` after those before.
template <Form FORM, int GROUP, int Q, int R>
INLINE void terms_of(const Weights& w, long row, long distance, const char* packed, float* terms, long each) {
  const Unpack unpack(w.bits);
  const long groups = w.k / GROUP, period = Row::period(w), bytes = scale_bytes(w);
  Streams<Q, R> streams;
  const float *x_scales[R], *x_sums[R];
  for (int q = 0; q < Q; q++) {
    streams.w[q] = reinterpret_cast<const uint8_t*>(w.row(row + q * distance));
  }
  for (int r = 0; r < R; r++) {
    const Row of_x(packed + r * Row::size(w), w);
    streams.x[r] = of_x.bytes;
    x_scales[r] = of_x.scales;
    x_sums[r] = of_x.sums;
  }
  long at = 0;
  for (long g = 0, in_row = 0; g < lanes * groups; g += 16, terms += 16) {
    __m512i sums[Q][R];
    multiply_groups<FORM, GROUP>(unpack, streams, at, period, sums);
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
      const long first = (row + q * distance) * groups + g;
      // Prefetches the scales of the next rows.
      const long next = (row + q * distance + lanes) * bytes + g * bytes / groups;
      _mm_prefetch(static_cast<const char*>(w.scales) + next, _MM_HINT_T1);
      if constexpr (FORM != Form::e2m1) {
        _mm_prefetch(static_cast<const char*>(w.biases) + next, _MM_HINT_T1);
      }
      const auto [scale, bias] = sixteen_groups<FORM, GROUP>(w, first, first_lanes(16));
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        __m512 scaled = _mm512_mul_ps(scale, _mm512_loadu_ps(x_scales[r] + in_row));
        __m512 biased = _mm512_mul_ps(bias, _mm512_loadu_ps(x_sums[r] + in_row));
        _mm512_store_ps(terms + (q * R + r) * each, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[q][r]), scaled, biased));
      }
    }
    for (in_row += 16; in_row >= groups; in_row -= groups) {
    }
  }
}

// Adds the n terms of 16 rows. The terms of each row are added one after the other.
INLINE __m512 added(const float* terms, long n) {
  __m512 sum = _mm512_setzero_ps();
  for (long g = 0; g < n; g += 4) {
    // Block b of vector i is row i + 4 b.
    __m512 rows[4];
#pragma GCC unroll 4
    for (long i = 0; i < 4; i++) {
      auto at = [&](long row) ALWAYS_INLINE { return _mm_loadu_ps(terms + (i + row) * n + g); };
      rows[i] = _mm512_insertf32x4(_mm512_insertf32x4(_mm512_castps128_ps512(at(0)), at(4), 1), at(8), 2);
      rows[i] = _mm512_insertf32x4(rows[i], at(12), 3);
    }
    auto pairs = [](__m512 a, __m512 b) ALWAYS_INLINE { return _mm512_castps_pd(_mm512_unpacklo_ps(a, b)); };
    auto others = [](__m512 a, __m512 b) ALWAYS_INLINE { return _mm512_castps_pd(_mm512_unpackhi_ps(a, b)); };
    __m512d low = pairs(rows[0], rows[1]), next = pairs(rows[2], rows[3]);
    __m512d high = others(rows[0], rows[1]), last = others(rows[2], rows[3]);
    const __m512 columns[4] = {
        _mm512_castpd_ps(_mm512_unpacklo_pd(low, next)), _mm512_castpd_ps(_mm512_unpackhi_pd(low, next)),
        _mm512_castpd_ps(_mm512_unpacklo_pd(high, last)), _mm512_castpd_ps(_mm512_unpackhi_pd(high, last))};
    for (long i = 0; i < smaller(4, n - g); i++) {
      sum = _mm512_add_ps(sum, columns[i]);
    }
  }
  return sum;
}

// The kernel: rows of x are two planes of bytes.
struct Planes {
  static constexpr long least_group = 16;

  static constexpr int beside(Form form, int rows) {
    return rows > 2 ? 2 : 4;
  }
  static long row_size(const Weights& w) {
    return Row::size(w);
  }
  // The terms for 16 rows of weights and one row of x. Some terms after the last one are read, but not added.
  static long terms(const Weights& w) {
    return lanes * w.groups() + 16;
  }
  static long scratch_size(const Weights& w) {
    return 4 * 4 * terms(w) * static_cast<long>(sizeof(float)) + rows_size(w);
  }
  static void pack(const Product& p, const Weights& w, long first, long rows, void* packed) {
    return matmul::pack(p, w, first, rows, packed);
  }
  template <Form FORM, int GROUP, int Q, int R>
  static void lanes_of(
      const Product& p, const Weights& w, long first, const char* packed, long row, long rows, long distance, void* scratch) {
    auto* all = static_cast<float*>(scratch);
    const long each = terms(w);
    if (Q == 1 && rows < lanes) {
      terms_of<FORM, GROUP, 1, R>(copied(w, row, rows, all + 4 * 4 * each), 0, 0, packed, all, each);
    } else {
      terms_of<FORM, GROUP, Q, R>(w, row, distance, packed, all, each);
    }
    for (long q = 0; q < Q; q++) {
      for (long r = 0; r < smaller(R, p.m - first); r++) {
        write(p.type, added(all + (q * R + r) * each, w.groups()), rows, static_cast<uint16_t*>(p.y[first + r]) + row + q * distance);
      }
    }
  }

 private:
  // The bytes for a copy of 16 rows of codes, scales and biases.
  static long rows_size(const Weights& w) {
    return lanes * w.row_bytes() + 2 * lanes * scale_bytes(w) + 3 * 64;
  }
  // A copy of fewer than 16 rows, followed by zeros, because 16 are read at a time.
  static Weights copied(const Weights& w, long row, long rows, void* memory) {
    auto* to = static_cast<char*>(memory);
    std::memset(to, 0, rows_size(w));
    auto copy = [&](const void* from, long bytes) -> const void* {
      if (from == nullptr) {
        return nullptr;
      }
      char* here = to;
      std::memcpy(here, static_cast<const char*>(from) + row * bytes, rows * bytes);
      to += round_up(lanes * bytes, 64);
      return here;
    };
    Weights few = w;
    few.n = lanes;
    few.data = copy(w.data, w.row_bytes());
    few.scales = copy(w.scales, scale_bytes(w));
    few.biases = copy(w.biases, scale_bytes(w));
    return few;
  }
};

} // namespace

const IntKernels* int8_few_rows_avx512vnni() {
  return &few_rows_of<Planes>;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::IntKernels* mlxrs::matmul::int8_few_rows_avx512vnni() {
  return nullptr;
}

#endif
