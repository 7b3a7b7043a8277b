// The kernel of whole.h for many rows of x, for any vectors V. Included by the file of each instruction set.
//
// x is packed so that a vector's lanes are rows: each has a pair of numbers of its row. Some rows of weights are written out as
// numbers of 16 bits, and a product with a pair of them, which all lanes get, adds two terms to each lane's sum. What scales the
// sums of a group are then vectors too. An element's sums are exact within a group, and added group by group: they are the same in
// any vectors.
//
// V has: Sums, Real and Codes, vectors of `width` whole numbers and f32 and twice as many whole numbers of 16 bits; `side` rows of
// weights by two vectors of x make a tile of sums, which should fit in registers with as many real numbers; expand<FORM>, the next
// 2 * width codes in 16 bits; turn, which exchanges rows and columns of `width` by `width` lanes; pair, a pair of codes in all lanes; none_yet, add, load and
// store, of whole numbers; bits and real, which change a vector's type; Unpack and real numbers as in whole_vectors.h.
#pragma once

#include "whole_numbers.h"

namespace mlxrs::matmul {
namespace {

template <class V>
struct WholeTiles {
  using Real = typename V::Real;
  using Sums = typename V::Sums;
  using Codes = typename V::Codes;

  static constexpr long width = V::width, side = V::side;
  // Rows of weights, and elements of each, that are written out before they are multiplied: they stay in the first cache.
  static constexpr long panel = 24 * width / 8, part = 4096 / width;

  // `width` rows of x: pairs of whole numbers, row beside row; for each group the scales; for each the sums.
  struct Columns {
    const int16_t* whole;
    const float *scales, *sums;

    Columns(const void* packed, const Weights& w)
        : whole(static_cast<const int16_t*>(packed)),
          scales(reinterpret_cast<const float*>(whole + w.k * width)),
          sums(scales + w.groups() * width) {}
  };
  static long packed_size(const Weights& w, long) {
    return (2 * w.k + 8 * w.groups()) * width;
  }
  static void pack(const Product& p, const Weights& w, long first, long, void* packed) {
    const Columns columns(packed, w);
    auto* to = const_cast<int16_t*>(columns.whole);
    auto *scales = const_cast<float*>(columns.scales), *sums = const_cast<float*>(columns.sums);
    alignas(64) int16_t whole[width][128] = {};
    for (long g = 0; g < w.groups(); g++) {
      for (long r = 0; r < width; r++) {
        Scaled scaled{0, 0};
        if (first + r < p.m) {
          scaled = to_whole(p.type, static_cast<const uint16_t*>(p.x[first + r]) + g * w.group, w.group, whole[r]);
        }
        scales[g * width + r] = scaled.scale;
        sums[g * width + r] = scaled.sum;
      }
      for (long k = 0; k < w.group; k += 2 * width) {
        Codes rows[width];
        for (long r = 0; r < width; r++) {
          rows[r] = V::load(whole[r] + k);
        }
        V::turn(rows);
        for (long r = 0; r < width; r++, to += 2 * width) {
          V::store(to, rows[r]);
        }
      }
    }
  }

  // What a task needs: a part of a panel's rows, the scales and biases of all their groups, and sums for all rows of x.
  struct Scratch {
    int16_t* codes;
    long groups;
    float *scales, *biases, *sums;

    Scratch(void* memory, const Weights& w)
        : codes(static_cast<int16_t*>(memory)),
          groups(round_up(w.groups(), width)),
          scales(reinterpret_cast<float*>(codes + panel * part)),
          biases(scales + panel * groups),
          sums(biases + panel * groups) {}
    static long size(const Product& p, const Weights& w) {
      return panel * (2 * part + 8 * round_up(w.groups(), width) + 4 * round_up(p.m, width));
    }
  };

  // What the next panel will be made of, fetched line after line while this one is multiplied.
  class Next {
   public:
    Next(const Weights& w, long row, long row_end) {
      const long rows = smaller(panel, row_end - row);
      auto add = [&](const void* from, long bytes) {
        if (from == nullptr) {
          return;
        }
        at_[pieces_] = static_cast<const char*>(from) + row * bytes;
        end_[pieces_++] = static_cast<const char*>(from) + (row + rows) * bytes;
      };
      if (rows > 0) {
        add(w.scales, scale_bytes(w));
        add(w.biases, scale_bytes(w));
        add(w.data, w.row_bytes());
      }
    }
    void fetch(long lines) {
      for (; lines > 0 && pieces_ > 0; lines--) {
        const char*& at = at_[pieces_ - 1];
        __builtin_prefetch(at);
        at += 64;
        pieces_ -= at >= end_[pieces_ - 1];
      }
    }

   private:
    const char *at_[3], *end_[3];
    int pieces_ = 0;
  };

  // Writes elements [k, k_end) of row `row` out.
  template <Form FORM>
  static void expand(const Weights& w, const typename V::Unpack& unpack, long row, long k, long k_end, int16_t* to) {
    const uint8_t* from = static_cast<const uint8_t*>(w.data) + row * w.row_bytes();
    constexpr long codes = 2 * width;
    const long bits = FORM == Form::any ? w.bits : bits_of(FORM);
#pragma GCC unroll 4
    for (; k < k_end; k += codes, to += codes) {
      // What is loaded may be more than the codes, and the end of a row the end of the memory.
      const uint8_t* here = from + k * bits / 8;
      const long left = (w.k - k) * bits / 8;
      uint8_t last[codes];
      if (FORM == Form::any && left < codes) {
        std::memcpy(last, here, left);
        here = last;
      }
      V::store(to, V::template expand<FORM>(unpack, here));
    }
  }

  // Scales and biases of row `row`.
  template <Form FORM>
  static void expand_groups(const Weights& w, long row, float* scales, float* biases) {
    for (long g = 0; g < w.groups(); g += width) {
      const auto [scale, bias] = some_groups<V, FORM>(w, row * w.groups() + g, w.groups() - g);
      V::store(scales + g, scale);
      V::store(biases + g, bias);
    }
  }

  // Adds products of groups [g, g_end) of rows [row, row + side) of a panel with X vectors of x to sums, of which each row of the panel
  // has `distance`. They begin here if `first`.
  template <int X>
  static void tile(
      const Weights& w, const Scratch& s, long row, const char* packed, long g, long g_end, bool first, float* sums, long distance,
      Next& next) {
    auto each = [](auto body) ALWAYS_INLINE {
#pragma GCC unroll 12
      for (int q = 0; q < side; q++) {
#pragma GCC unroll 2
        for (int v = 0; v < X; v++) {
          body(q, v);
        }
      }
    };
    sums += row * distance;
    Real all[side][X];
    each([&](int q, int v) ALWAYS_INLINE { all[q][v] = first ? V::zero() : V::load(sums + q * distance + v * width); });
    const int16_t* codes = s.codes + row * part;
    const float *scales = s.scales + row * s.groups + g, *biases = s.biases + row * s.groups + g;
    for (; g < g_end; g++, scales++, biases++) {
      // All lines of codes with the first rows of x, and one for scales.
      next.fetch(side * w.group * w.bits / 8 / 64 + 1);
      const int16_t* x[X];
      Real x_scales[X], x_sums[X];
#pragma GCC unroll 2
      for (int v = 0; v < X; v++) {
        Columns columns(packed + v * packed_size(w, 0), w);
        x[v] = columns.whole + g * w.group * width;
        x_scales[v] = V::load(columns.scales + g * width);
        x_sums[v] = V::load(columns.sums + g * width);
      }
      Sums whole[side][X];
      each([&](int q, int v) ALWAYS_INLINE { whole[q][v] = V::none_yet(); });
      for (const int16_t* end = codes + w.group; codes < end; codes += 2) {
        Codes of_x[X];
#pragma GCC unroll 2
        for (int v = 0; v < X; v++) {
          of_x[v] = V::load(x[v]);
          x[v] += 2 * width;
        }
#pragma GCC unroll 12
        for (int q = 0; q < side; q++) {
          Codes of_w = V::pair(codes + q * part);
#pragma GCC unroll 2
          for (int v = 0; v < X; v++) {
            whole[q][v] = V::add(whole[q][v], of_x[v], of_w);
          }
        }
      }
      each([&](int q, int v) ALWAYS_INLINE {
        Real biased = V::fma(V::all(biases[q * s.groups]), x_sums[v], all[q][v]);
        all[q][v] = V::fma(V::from(whole[q][v]), V::multiply(V::all(scales[q * s.groups]), x_scales[v]), biased);
      });
    }
    each([&](int q, int v) ALWAYS_INLINE { V::store(sums + q * distance + v * width, all[q][v]); });
  }

  // Sums of a panel's rows, which have `distance` each, rounded to rows of y from `row` on.
  static void write_rows(const Product& p, const float* sums, long distance, long row, long row_end) {
    for (long i = 0; i < p.m; i += width) {
      for (long q = 0; q < panel && row + q < row_end; q += width) {
        Codes rows[width];
        for (long r = 0; r < width; r++) {
          rows[r] = V::bits(V::load(sums + (q + r) * distance + i));
        }
        V::turn(rows);
        for (long r = 0; r < smaller(width, p.m - i); r++) {
          float y[width];
          V::store(y, V::real(rows[r]));
          write(p.type, y, smaller(width, row_end - row - q), static_cast<uint16_t*>(p.y[i + r]) + row + q);
        }
      }
    }
  }

  template <Form FORM>
  static void rows_by(const Product& p, const Weights& w, const char* packed, long row, long row_end, void* scratch) {
    const Scratch s(scratch, w);
    const typename V::Unpack unpack(w.bits);
    const long distance = round_up(p.m, width), size = packed_size(w, 0);
    for (; row < row_end; row += panel) {
      // Behind the last row that there is, it stands again.
      const long rows = smaller(round_up(row_end - row, side), panel);
      Next next(w, row + panel, row_end);
      for (long q = 0; q < rows; q++) {
        expand_groups<FORM>(w, smaller(row + q, row_end - 1), s.scales + q * s.groups, s.biases + q * s.groups);
      }
      for (long k = 0; k < w.k; k += part) {
        const long k_end = smaller(k + part, w.k), g = k / w.group, g_end = k_end / w.group;
        for (long q = 0; q < rows; q++) {
          expand<FORM>(w, unpack, smaller(row + q, row_end - 1), k, k_end, s.codes + q * part);
        }
        for (long i = 0; i < distance; i += 2 * width) {
          const char* x = packed + i / width * size;
          for (long q = 0; q < rows; q += side) {
            auto* by = i + width < distance ? tile<2> : tile<1>;
            by(w, s, q, x, g, g_end, k == 0, s.sums + i, distance, next);
          }
        }
      }
      write_rows(p, s.sums, distance, row, row_end);
    }
  }
  static void rows(const Product& p, const Weights& w, const void* packed, long row, long row_end, void* scratch) {
    auto by = w.coding != Coding::affine ? rows_by<Form::e2m1>
        : w.bits == 4                      ? rows_by<Form::four>
        : w.bits == 8                      ? rows_by<Form::eight>
                                           : rows_by<Form::any>;
    by(p, w, static_cast<const char*>(packed), row, row_end, scratch);
  }
};

template <class V>
constexpr Whole tiles_of = {
    WholeTiles<V>::side,
    WholeTiles<V>::width,
    WholeTiles<V>::packed_size,
    WholeTiles<V>::pack,
    WholeTiles<V>::Scratch::size,
    WholeTiles<V>::rows};

} // namespace
} // namespace mlxrs::matmul
