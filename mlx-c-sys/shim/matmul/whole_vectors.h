// The kernel of whole.h in products of 16 bits, for any vectors V. Included by the file of each instruction set.
//
// V has: Real, Sums and Codes, vectors of f32, of whole numbers of 32 bits, `width` of each, and of twice as many of 16 bits;
// load, of Codes; widen, of bytes to Codes; nibble<I>, the codes of 4 bits whose places are I, I + 4, I + 8 ..., and e2m1<I>,
// what stands for them in e2m1_codes; Unpack, the next codes of any width out of 16 bytes of which not all need belong to
// them; multiply and add, of the pairs of two Codes to a lane each; for Real zero, load, store, all (one number), halves (two)
// and quarters (four) if a vector has codes of so many groups, from (Sums), fma, and sum, of its lanes; and least_group, the
// smallest group that it takes.
#pragma once

#include <type_traits>

#include "whole_numbers.h"
#include "whole_rows.h"

namespace mlxrs::matmul {
namespace {

template <class V>
struct WholeVectors {
  using Real = typename V::Real;
  using Sums = typename V::Sums;
  using Codes = typename V::Codes;

  static constexpr long width = V::width;
  // Codes of a vector, and of the four that are read at once.
  static constexpr long codes = 2 * width, step = 4 * codes;

  static constexpr long least_group = V::least_group;

  static constexpr int beside(Form, int rows) {
    return rows == 1 ? 4 : V::beside;
  }

  // A row of x: whole numbers, in the order of the codes; then for each group the scale; then for each the sum. Zeros behind
  // what is there, up to a whole step and a whole vector.
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
        // One group, or some that make a step.
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

  // Adds the products of N codes of Q rows of weights with R rows of x: of a step of 4-bit codes, else of as many as are in one group.
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

  // The scales of the groups that a vector has codes of, in the lanes of each.
  template <int GROUPS>
  static INLINE Real spread(const float* scales) {
    static_assert(GROUPS <= 4, "a vector has codes of four groups at most");
    if constexpr (GROUPS == 4) {
      return V::quarters(scales);
    } else if constexpr (GROUPS == 2) {
      return V::halves(scales[0], scales[1]);
    }
    return V::all(scales[0]);
  }

  // The products of Q rows of weights, `distance` apart, with R rows of x, as `width` parts of a sum each.
  template <Form FORM, int GROUP, int Q, int R>
  static INLINE void rows_of(
      const Weights& w, const typename V::Unpack& unpack, long row, long distance, const char* packed, Real (&sums)[Q][R]) {
    constexpr int BITS = bits_of(FORM);
    // What is added before the sums are scaled.
    constexpr long part = BITS == 4 || step < GROUP ? step : GROUP;
    const long groups = w.groups(), bits = BITS == 0 ? unpack.bits : BITS;
    const uint8_t* from[Q];
    const int16_t* x[R];
    const float *x_scales[R], *x_sums[R];
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
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++) {
        sums[q][r] = V::zero();
      }
    }
    for (long g = 0; g < groups; g += width) {
      float scales[Q][R][width];
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++) {
        long at = (row + q * distance) * groups + g;
        const auto [scale, bias] = some_groups<V, FORM>(w, at, groups - g);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          V::store(scales[q][r], V::multiply(scale, V::load(x_scales[r] + g)));
          sums[q][r] = V::fma(bias, V::load(x_sums[r] + g), sums[q][r]);
        }
      }
      const long k_end = smaller((g + width) * GROUP, w.k);
      for (long k = g * GROUP; k < k_end; k += part) {
        const auto of_group = static_cast<unsigned long>(k - g * GROUP) / GROUP;
        // The end of a row may be the end of the memory, and the last codes less than a part.
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
          __builtin_prefetch(from[q] + ahead, 0, 3);
          from[q] += part * bits / 8;
        }
        Sums whole[Q][R];
        multiply<FORM, part>(unpack, now, x, whole);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          x[r] += part;
#pragma GCC unroll 4
          for (int q = 0; q < Q; q++) {
            const float* at = scales[q][r] + of_group;
            sums[q][r] = V::fma(V::from(whole[q][r]), spread<part / GROUP>(at), sums[q][r]);
          }
        }
      }
    }
  }

  // y for Q times at most `lanes` rows of weights, `distance` apart, and R rows of x, of which there are p.m.
  template <Form FORM, int GROUP, int Q, int R>
  static void lanes_of(const Product& p, const Weights& w, long first, const char* packed, long row, long rows, long distance) {
    const typename V::Unpack unpack(w.bits);
    float y[Q][R][lanes];
    for (long i = 0; i < rows; i++) {
      Real sums[Q][R];
      rows_of<FORM, GROUP>(w, unpack, row + i, distance, packed, sums);
      for (int q = 0; q < Q; q++) {
        for (int r = 0; r < R; r++) {
          y[q][r][i] = V::sum(sums[q][r]);
        }
      }
    }
    for (long q = 0; q < Q; q++) {
      for (long r = 0; r < smaller(R, p.m - first); r++) {
        write(p.type, y[q][r], rows, static_cast<uint16_t*>(p.y[first + r]) + row + q * distance);
      }
    }
  }
};

} // namespace
} // namespace mlxrs::matmul
