// The kernel of whole.h for many rows of x, for any vectors V. Included by the file of each instruction set.
//
// x is packed so that a vector's lanes are rows: each has a few numbers of its row. Some rows of weights are written out as
// whole numbers, and a product with as many of them, which all lanes get, adds their terms to each lane's sum. What scales the
// sums of a group are then vectors too. An element's sums are exact within a group, and added group by group: they are the same in
// any vectors.
//
// V has: Real and Sums, `width` numbers of f32 and of whole numbers; Code, in which codes are written out, and Codes, a vector of
// `codes` of them; `in_lane` codes, which go to a lane, as Few, and so many numbers of x for each lane, as X; `side` rows of weights
// by `across` vectors of x make a tile of sums, which should fit in registers with as many real numbers; expand<FORM>, the next
// codes written out, which loads `loaded_of_any` bytes where FORM is any, and expand_groups<FORM>, the next `scales` scales and biases, as far as they are there; lay, which packs a group of x, `layout` being made for the codes' order; none_yet and add, of sums; from, of
// sums; turn, which exchanges rows and columns of `width` by `width` numbers; Unpack and real numbers as in whole_vectors.h.
#pragma once

#include "whole_numbers.h"

namespace mlxrs::matmul {
namespace {

template <class V>
struct WholeTiles {
  using Real = typename V::Real;
  using Sums = typename V::Sums;
  using Code = typename V::Code;

  static constexpr long width = V::width, side = V::side;
  // Rows of weights, and elements of each, that are written out before they are multiplied: they stay in the first cache.
  static constexpr long panel = 24 * width / 8, part = 4096 / width;

  // `width` rows of x: whole numbers as `lay` leaves them; for each group the scales; for each the sums.
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
    const typename V::Layout layout(w.bits);
    const Columns columns(packed, w);
    auto* to = const_cast<int16_t*>(columns.whole);
    auto *scales = const_cast<float*>(columns.scales), *sums = const_cast<float*>(columns.sums);
    alignas(64) int16_t whole[width][128] = {};
    for (long g = 0; g < w.groups(); g++, to += w.group * width) {
      for (long r = 0; r < width; r++) {
        Scaled scaled{0, 0};
        if (first + r < p.m) {
          scaled = to_whole(p.type, static_cast<const uint16_t*>(p.x[first + r]) + g * w.group, w.group, whole[r]);
        }
        scales[g * width + r] = scaled.scale;
        sums[g * width + r] = scaled.sum;
      }
      V::lay(layout, whole, w.group, to);
    }
  }

  // What a task needs: a part of a panel's rows, the scales and biases of all their groups, and sums for all rows of x.
  struct Scratch {
    Code* codes;
    long groups;
    float *scales, *biases, *sums;

    Scratch(void* memory, const Weights& w)
        : codes(static_cast<Code*>(memory)),
          groups(round_up(w.groups(), V::scales)),
          scales(reinterpret_cast<float*>(codes + panel * part)),
          biases(scales + panel * groups),
          sums(biases + panel * groups) {}
    static long size(const Product& p, const Weights& w) {
      return panel * (static_cast<long>(sizeof(Code)) * part + 8 * round_up(w.groups(), V::scales) + 4 * round_up(p.m, width));
    }
  };

  // What the next panel will be made of, fetched while this one is multiplied: behind the end of the memory that is no harm.
  class Next {
   public:
    Next(const Weights& w, long row)
        : codes_(w.row(row)),
          scales_(static_cast<const char*>(w.scales) + row * scale_bytes(w)),
          biases_(w.biases == nullptr ? scales_ : static_cast<const char*>(w.biases) + row * scale_bytes(w)),
          code_bytes_(side * w.group * w.bits / 8),
          group_bytes_(side * scale_bytes(w) / w.groups()) {}
    // As much as a tile takes for a group.
    INLINE void fetch() {
      for (const char* end = codes_ + code_bytes_; codes_ < end; codes_ += 64) {
        __builtin_prefetch(codes_, 0, 2);
      }
      __builtin_prefetch(scales_, 0, 2);
      __builtin_prefetch(biases_, 0, 2);
      scales_ += group_bytes_;
      biases_ += group_bytes_;
    }

   private:
    const char *codes_, *scales_, *biases_;
    long code_bytes_, group_bytes_;
  };

  // Writes elements [k, k_end) of row `row` out.
  template <Form FORM>
  static void expand(const Weights& w, const typename V::Unpack& unpack, long row, long k, long k_end, Code* to) {
    const uint8_t* from = static_cast<const uint8_t*>(w.data) + row * w.row_bytes();
    constexpr long codes = V::codes;
    const long bits = FORM == Form::any ? w.bits : bits_of(FORM), bytes = codes * bits / 8;
    // What is loaded may be more than the codes, and the end of a row the end of the memory.
    const long loaded = FORM == Form::any ? V::loaded_of_any : bytes;
    const long safe = smaller(k_end, w.k - (loaded * 8 + bits - 1) / bits + codes);
    from += k * bits / 8;
    for (; k + codes <= safe; k += codes, from += bytes, to += codes) {
      V::store(to, V::template expand<FORM>(unpack, from));
    }
    for (; k < k_end; k += codes, from += bytes, to += codes) {
      uint8_t last[codes] = {};
      std::memcpy(last, from, smaller(codes, w.k - k) * bits / 8);
      V::store(to, V::template expand<FORM>(unpack, last));
    }
  }

  // Adds products of groups [g, g_end) of rows [row, row + side) of a panel with X vectors of x to sums, of which each row of the panel
  // has `distance`. They begin here if `first`.
  template <int X>
  static void tile(
      const Weights& w, const Scratch& s, long row, const char* packed, long g, long g_end, bool first, float* sums, long distance,
      Next* next) {
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
    const Code* codes = s.codes + row * part;
    const float *scales = s.scales + row * s.groups + g, *biases = s.biases + row * s.groups + g;
    const int16_t* x[X];
    const float *x_scales[X], *x_sums[X];
    for (int v = 0; v < X; v++) {
      Columns columns(packed + v * packed_size(w, 0), w);
      x[v] = columns.whole + g * w.group * width;
      x_scales[v] = columns.scales + g * width;
      x_sums[v] = columns.sums + g * width;
    }
    for (; g < g_end; g++, scales++, biases++) {
      if (next != nullptr) {
        next->fetch();
      }
      Sums whole[side][X];
      each([&](int q, int v) ALWAYS_INLINE { whole[q][v] = V::none_yet(); });
      for (const Code* end = codes + w.group; codes < end; codes += V::in_lane) {
        typename V::X of_x[X];
#pragma GCC unroll 2
        for (int v = 0; v < X; v++) {
          of_x[v] = V::load_x(x[v]);
          x[v] += V::in_lane * width;
        }
#pragma GCC unroll 12
        for (int q = 0; q < side; q++) {
          auto of_w = V::few(codes + q * part);
#pragma GCC unroll 2
          for (int v = 0; v < X; v++) {
            V::add(whole[q][v], of_x[v], of_w);
          }
        }
      }
      Real of_x[X], sums_of_x[X];
#pragma GCC unroll 2
      for (int v = 0; v < X; v++) {
        of_x[v] = V::load(x_scales[v]);
        sums_of_x[v] = V::load(x_sums[v]);
        x_scales[v] += width;
        x_sums[v] += width;
      }
      each([&](int q, int v) ALWAYS_INLINE {
        Real scale = V::multiply(V::all(scales[q * s.groups]), of_x[v]);
        Real biased = V::multiply(V::all(biases[q * s.groups]), sums_of_x[v]);
        all[q][v] = V::sum_of(all[q][v], V::fma(V::from(whole[q][v]), scale, biased));
      });
    }
    each([&](int q, int v) ALWAYS_INLINE { V::store(sums + q * distance + v * width, all[q][v]); });
  }

  // Sums of a panel's rows, which have `distance` each, rounded to rows of y from `row` on.
  static void write_rows(const Product& p, const float* sums, long distance, long row, long row_end) {
    for (long i = 0; i < p.m; i += width) {
      for (long q = 0; q < panel && row + q < row_end; q += width) {
        typename V::Whole rows[width];
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
    const long distance = round_up(p.m, width), size = packed_size(w, 0), groups = w.groups();
    for (; row < row_end; row += panel) {
      // Behind the last row that there is, it stands again.
      const long rows = smaller(round_up(row_end - row, side), panel);
      Next next(w, row + panel);
      for (long q = 0; q < rows; q++) {
        const long at = smaller(row + q, row_end - 1) * groups;
        for (long g = 0; g < groups; g += V::scales) {
          V::template expand_groups<FORM>(w, at + g, groups - g, s.scales + q * s.groups + g, s.biases + q * s.groups + g);
        }
      }
      for (long k = 0; k < w.k; k += part) {
        const long k_end = smaller(k + part, w.k), g = k / w.group, g_end = k_end / w.group;
        for (long q = 0; q < rows; q++) {
          expand<FORM>(w, unpack, smaller(row + q, row_end - 1), k, k_end, s.codes + q * part);
        }
        for (long i = 0; i < distance; i += V::across * width) {
          const char* x = packed + i / width * size;
          auto* by = V::across == 2 && i + width < distance ? tile<V::across> : tile<1>;
          for (long q = 0; q < rows; q += side) {
            by(w, s, q, x, g, g_end, k == 0, s.sums + i, distance, i == 0 ? &next : nullptr);
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
