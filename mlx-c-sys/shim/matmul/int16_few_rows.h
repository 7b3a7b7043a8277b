// The kernel for few rows of x with 16-bit integer products, for any vector type V. Each instruction set's file
// includes this header.
//
// V has:
//   Real, Sums, Codes  vectors of `width` f32, of `width` 32-bit integers, and of 2 * width 16-bit integers
//   load, widen        Codes from memory, and from bytes
//   nibble<I>, e2m1<I> the 4-bit codes at places I, I + 4, I + 8, ..., and their values in e2m1_codes
//   Unpack             the next codes of any width; it reads 16 bytes, which may be more than the codes
//   multiply, add      the product of two Codes, with each pair added to one lane, without and with earlier sums
//   none_yet, sum_of   zero sums, and the addition of sums
//   folded             the sums of `width` groups, from `width` vectors that hold one group each, or from half or a
//                      quarter as many vectors that hold two or four groups
//   Real's load, store, multiply, fma, and from (Sums)
//   least_group        the smallest group that it supports
#pragma once

#include <type_traits>

#include "int_codes.h"
#include "few_rows.h"

namespace mlxrs::matmul {
namespace {

template <class V>
struct Int16FewRows {
  using Real = typename V::Real;
  using Sums = typename V::Sums;
  using Codes = typename V::Codes;

  static constexpr long width = V::width;
  // The codes in a vector, and in the four vectors that are read at once.
  static constexpr long codes = 2 * width, step = 4 * codes;

  static constexpr long least_group = V::least_group;

  static constexpr int beside(Form, int rows) {
    return rows == 1 ? 4 : V::beside;
  }

  // A packed row of x: its integers in the order of the codes, then a scale for each group, then a sum for each group.
  // Each part is padded with zeros to a whole step or vector.
  struct Row {
    const int16_t* whole;
    const float *scales, *sums;

    Row(const void* packed, const Weights& w)
        : whole(static_cast<const int16_t*>(packed)),
          scales(reinterpret_cast<const float*>(whole + round_up(w.k, step))),
          sums(scales + round_up(w.groups(), width)) {}
  };
  static long row_size(const Weights& w) {
    return round_up(2 * round_up(w.k, step) + 8 * round_up(w.groups(), width), 64);
  }

  // The terms for one row of weights and one row of x; and the bytes for the terms of all rows that are multiplied
  // together.
  static long terms(const Weights& w) {
    return round_up(w.groups(), width);
  }
  static long scratch_size(const Weights& w) {
    return 4 * 4 * lanes * terms(w) * static_cast<long>(sizeof(float));
  }
  static void pack(const Product& p, const Weights& w, long first, long rows, void* packed) {
    const long groups = w.groups(), in_step = w.group < step ? step / w.group : 1;
    for (long r = 0; r < rows; r++) {
      char* at = static_cast<char*>(packed) + r * row_size(w);
      std::memset(at, 0, row_size(w));
      if (first + r >= p.m) {
        continue;
      }
      Row row(at, w);
      auto *to = const_cast<int16_t*>(row.whole);
      auto *scales = const_cast<float*>(row.scales), *sums = const_cast<float*>(row.sums);
      auto* x = static_cast<const uint16_t*>(p.x[first + r]);
      for (long g = 0; g < groups; g += in_step) {
        // One group, or as many groups as fill a step.
        int16_t whole[128] = {};
        for (long i = g; i < smaller(g + in_step, groups); i++) {
          auto [scale, sum] = to_whole(p.type, x + i * w.group, w.group, whole + (i - g) * w.group);
          scales[i] = scale;
          sums[i] = sum;
        }
        for (long k = 0; k < w.group * in_step; k += step, to += step) {
          for (long i = 0; i < step; i++) {
            to[i] = w.bits == 4 ? whole[k + i % codes * 4 + i / codes] : whole[k + i];
          }
        }
      }
    }
  }

  // Adds the products of N codes of Q rows of weights with R rows of x. N is a step for 4-bit codes, else at most the
  // codes of one group.
  template <Form FORM, int N, int Q, int R>
  static INLINE void multiply(
      const typename V::Unpack& unpack, const uint8_t* const (&w)[Q], const int16_t* const (&x)[R], Sums (&sums)[Q][R]) {
    auto add = [&](auto at) ALWAYS_INLINE {
      constexpr int I = decltype(at)::value;
      if constexpr (I * codes < N) {
        Codes from[Q];
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) {
          if constexpr (FORM == Form::four) {
            from[q] = V::template nibble<I>(V::load(w[q]));
          } else if constexpr (FORM == Form::e2m1) {
            from[q] = V::template e2m1<I>(V::load(w[q]));
          } else if constexpr (FORM == Form::eight) {
            from[q] = V::widen(w[q] + I * codes);
          } else {
            from[q] = unpack(w[q] + I * codes / 8 * unpack.bits);
          }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          Codes of_x = V::load(x[r] + I * codes);
#pragma GCC unroll 4
          for (int q = 0; q < Q; q++) {
            sums[q][r] = I == 0 ? V::multiply(of_x, from[q]) : V::add(sums[q][r], of_x, from[q]);
          }
        }
      }
    };
    add(std::integral_constant<int, 0>());
    add(std::integral_constant<int, 1>());
    add(std::integral_constant<int, 2>());
    add(std::integral_constant<int, 3>());
  }

  // Computes the term of each group for Q rows of weights, `distance` apart, and R rows of x. The terms of each pair of
  // rows begin `each_terms` after those of the pair before.
  template <Form FORM, int GROUP, int Q, int R>
  static INLINE void rows_of(
      const Weights& w, const typename V::Unpack& unpack, long row, long distance, const char* packed, float* terms, long each_terms) {
    constexpr int BITS = bits_of(FORM);
    // `part`: codes that are multiplied at a time. `whole`: codes whose products are added as integers; one group or
    // several. `wholes`: the number of these that `width` groups take.
    constexpr long part = BITS == 4 || step < GROUP ? step : GROUP, whole = part < GROUP ? GROUP : part, wholes = width * GROUP / whole;
    const long groups = w.groups(), bits = BITS == 0 ? unpack.bits : BITS;
    const uint8_t* from[Q];
    const int16_t* x[R];
    const float *x_scales[R], *x_sums[R];
    auto each = [](auto body) ALWAYS_INLINE {
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          body(q, r);
        }
      }
    };
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
      from[q] = static_cast<const uint8_t*>(w.data) + (row + q * distance) * w.row_bytes();
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      Row of_x(packed + r * row_size(w), w);
      x[r] = of_x.whole;
      x_scales[r] = of_x.scales;
      x_sums[r] = of_x.sums;
    }
    for (long g = 0, k = 0; g < groups; g += width, terms += width) {
      Sums of_groups[Q][R][wholes];
#pragma GCC unroll 1
      for (long i = 0; i < wholes; i++) {
        if (k >= w.k) {
          // These sums are not used.
          each([&](int q, int r) ALWAYS_INLINE { of_groups[q][r][i] = of_groups[q][r][0]; });
          continue;
        }
#pragma GCC unroll 4
        for (long j = 0; j < whole / part; j++, k += part) {
          // Copies the last codes of a row: the memory may end there, and there may be fewer codes than a part.
          uint8_t last[Q][step + 16];
          const uint8_t* now[Q];
#pragma GCC unroll 4
          for (int q = 0; q < Q; q++) {
            now[q] = from[q];
            const long left = (w.k - k) * bits / 8, wanted = part * bits / 8 + (BITS == 0 ? 16 : 0);
            if ((BITS == 0 || (BITS == 4 && GROUP < part)) && left < wanted) {
              std::memset(last[q], 0, sizeof last[q]);
              std::memcpy(last[q], from[q], left);
              now[q] = last[q];
            }
            __builtin_prefetch(from[q] + far_ahead, 0, 2);
            from[q] += part * bits / 8;
          }
          Sums more[Q][R];
          multiply<FORM, part>(unpack, now, x, more);
#pragma GCC unroll 4
          for (auto& at : x) {
            at += part;
          }
          each([&](int q, int r) ALWAYS_INLINE {
            of_groups[q][r][i] = j > 0 ? V::sum_of(of_groups[q][r][i], more[q][r]) : more[q][r];
          });
        }
      }
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++) {
        // Groups after the end of the row are not added, so they may be those of the next row.
        const long at = (row + q * distance) * groups + g;
        const auto [scale, bias] = some_groups<V, FORM>(w, at, w.n * groups - at);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          Real scaled = V::multiply(scale, V::load(x_scales[r] + g)), biased = V::multiply(bias, V::load(x_sums[r] + g));
          V::store(terms + (q * R + r) * each_terms, V::fma(V::from(V::folded(of_groups[q][r])), scaled, biased));
        }
      }
    }
  }

  // Adds the terms of each row one after the other, for four rows at a time.
  static void add_terms(const float* terms, long n, long distance, float (&sums)[lanes]) {
    for (long i = 0; i < lanes; i += 4) {
      const float *a = terms + i * distance, *b = a + distance, *c = b + distance, *d = c + distance;
      float of_a = 0, of_b = 0, of_c = 0, of_d = 0;
      for (long g = 0; g < n; g++) {
        of_a += a[g];
        of_b += b[g];
        of_c += c[g];
        of_d += d[g];
      }
      sums[i] = of_a;
      sums[i + 1] = of_b;
      sums[i + 2] = of_c;
      sums[i + 3] = of_d;
    }
  }

  // Computes y for Q blocks of at most `lanes` rows of weights, `distance` apart, and R rows of x. Rows of x from p.m
  // on are skipped.
  template <Form FORM, int GROUP, int Q, int R>
  static void lanes_of(
      const Product& p, const Weights& w, long first, const char* packed, long row, long rows, long distance, void* scratch) {
    const typename V::Unpack unpack(w.bits);
    const long in_row = terms(w), each = lanes * in_row;
    auto* all = static_cast<float*>(scratch);
    for (long i = 0; i < lanes; i++) {
      // The last row is repeated up to `lanes` rows.
      rows_of<FORM, GROUP, Q, R>(w, unpack, row + smaller(i, rows - 1), distance, packed, all + i * in_row, each);
    }
    for (long q = 0; q < Q; q++) {
      for (long r = 0; r < smaller(R, p.m - first); r++) {
        float y[lanes];
        add_terms(all + (q * R + r) * each, w.groups(), in_row, y);
        write(p.type, y, rows, static_cast<uint16_t*>(p.y[first + r]) + row + q * distance);
      }
    }
  }
};

} // namespace
} // namespace mlxrs::matmul
