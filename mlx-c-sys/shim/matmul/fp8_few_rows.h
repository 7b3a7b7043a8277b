// The kernel for few rows of x and weights in e4m3 (mxfp8), for any vector type V. Each instruction set's file includes
// this header.
//
// The bits of an e4m3 number, shifted to the places of an f16 number's bits, are the number times 2^-8, also if it is
// subnormal. The f16 number is widened to f32. Products and sums are in f32, so only sums are rounded.
//
// V has: Real, a vector of `width` f32 numbers; pairs, the even and the odd elements of 2 * width codes; and load,
// store, zero, all (broadcast), multiply, fma, and sum (of the lanes).
#pragma once

#include "few_rows.h"

namespace mlxrs::matmul {
namespace {

template <class V>
struct Fp8FewRows {
  using Real = typename V::Real;

  static constexpr long width = V::width, pairs = 2 * width;

  static constexpr int beside(Form, int rows) {
    return rows == 1 ? 4 : 2;
  }

  // A row of x in f32: for each block that is read at a time, the even elements, then the odd ones.
  static long row_size(const Weights& w) {
    return round_up(4 * w.k, 64);
  }
  static long scratch_size(const Weights&) {
    return 0;
  }
  static void pack(const Product& p, const Weights& w, long first, long rows, void* packed) {
    for (long r = 0; r < rows; r++) {
      auto* to = reinterpret_cast<float*>(static_cast<char*>(packed) + r * row_size(w));
      if (first + r >= p.m) {
        std::memset(to, 0, row_size(w));
        continue;
      }
      auto* x = static_cast<const uint16_t*>(p.x[first + r]);
      for (long k = 0; k < w.k; k += pairs) {
        for (long i = 0; i < pairs; i++) {
          uint16_t from = x[k + i % width * 2 + i / width];
          to[k + i] = p.type == Float::f16 ? from_f16(from) : from_bf16(from);
        }
      }
    }
  }

  // The products of Q rows of weights, `distance` apart, with R rows of x. Each product is a vector of `width` partial
  // sums.
  template <int GROUP, int Q, int R>
  static INLINE void rows_of(const Weights& w, long row, long distance, const char* packed, Real (&sums)[Q][R]) {
    const long groups = w.groups();
    const uint8_t* from[Q];
    const float* x[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      x[r] = reinterpret_cast<const float*>(packed + r * row_size(w));
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++) {
        from[q] = static_cast<const uint8_t*>(w.data) + (row + q * distance) * w.row_bytes();
        sums[q][r] = V::zero();
      }
    }
    for (long g = 0; g < groups; g += width) {
      float scales[Q][width];
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++) {
        V::store(scales[q], some_bytes<V>(w, (row + q * distance) * groups + g, groups - g));
      }
      for (long i = 0; i < smaller(width, groups - g); i++) {
        Real of_group[Q][R];
#pragma GCC unroll 4
        for (long k = 0; k < GROUP; k += pairs) {
#pragma GCC unroll 4
          for (int q = 0; q < Q; q++) {
            const auto [even, odd] = V::pairs(from[q] + k);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
              Real of_even = V::load(x[r] + k), of_odd = V::load(x[r] + k + width);
              of_group[q][r] = k == 0 ? V::multiply(even, of_even) : V::fma(even, of_even, of_group[q][r]);
              of_group[q][r] = V::fma(odd, of_odd, of_group[q][r]);
            }
          }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          x[r] += GROUP;
#pragma GCC unroll 4
          for (int q = 0; q < Q; q++) {
            sums[q][r] = V::fma(of_group[q][r], V::all(scales[q][i]), sums[q][r]);
          }
        }
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) {
          __builtin_prefetch(from[q] + ahead, 0, 3);
          from[q] += GROUP;
        }
      }
    }
  }

  // Computes y for Q blocks of at most `lanes` rows of weights, `distance` apart, and R rows of x. Rows of x from p.m
  // on are skipped.
  template <Form, int GROUP, int Q, int R>
  static void lanes_of(const Product& p, const Weights& w, long first, const char* packed, long row, long rows, long distance, void*) {
    float y[Q][R][lanes];
    for (long i = 0; i < rows; i++) {
      Real sums[Q][R];
      rows_of<GROUP>(w, row + i, distance, packed, sums);
      for (int q = 0; q < Q; q++) {
        for (int r = 0; r < R; r++) {
          y[q][r][i] = V::sum(sums[q][r]) * 0x1p8f;
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
