// The kernel of whole.h for many rows of x, for any vectors V. Included by the file of each instruction set.
//
// Some rows of weights are written out as numbers of 16 bits, the same pair of all rows side by side, so that a vector's lanes are
// rows: a product with a pair of x, which all lanes get, adds two terms to each lane's sum, and what scales a group's sums are vectors too.
//
// V has: Sums, Real and Codes, vectors of `width` whole numbers and f32 and twice as many whole numbers of 16 bits; `vectors` of
// them side by side and `rows` of x make a tile of sums, which must fit in registers; expand<BITS>, the next 2 * width codes in 16
// bits; turn, which exchanges rows and columns of `width` by `width` pairs; pair, a pair of x in all lanes; none_yet, add, load
// and store, of whole numbers; Unpack and real numbers as in whole_vectors.h.
#pragma once

#include <tuple>
#include <utility>

#include "whole_numbers.h"

namespace mlxrs::matmul {
namespace {

template <class V>
struct WholeTiles {
  using Real = typename V::Real;
  using Sums = typename V::Sums;
  using Codes = typename V::Codes;

  // Rows of weights that are written out together, and of x in a tile.
  static constexpr long width = V::width, panel = V::vectors * width, block = V::rows;
  // Elements of k that are written out before they are multiplied: a panel's part stays in the first or the second cache.
  static constexpr long part = 512;

  // A row of x: whole numbers; for each group the scale; for each the sum.
  struct Row {
    const int16_t* whole;
    const float *scales, *sums;

    Row(const void* packed, const Weights& w)
        : whole(static_cast<const int16_t*>(packed)), scales(reinterpret_cast<const float*>(whole + w.k)), sums(scales + w.groups()) {}
  };
  static long row_size(const Weights& w) {
    return round_up(2 * w.k + 8 * w.groups(), 64);
  }
  static long packed_size(const Weights& w, long rows) {
    return rows * row_size(w);
  }
  static void pack(const Product& p, const Weights& w, long first, long rows, void* packed) {
    for (long r = 0; r < smaller(rows, p.m - first); r++) {
      Row row(static_cast<char*>(packed) + r * row_size(w), w);
      auto* x = static_cast<const uint16_t*>(p.x[first + r]);
      for (long g = 0; g < w.groups(); g++) {
        std::tie(const_cast<float*>(row.scales)[g], const_cast<float*>(row.sums)[g]) =
            to_whole(p.type, x + g * w.group, w.group, const_cast<int16_t*>(row.whole) + g * w.group);
      }
    }
  }

  // What a task needs: a part of a panel, the scales and biases of its groups, and sums for all rows of x.
  struct Scratch {
    int16_t* codes;
    float *scales, *biases, *sums;

    explicit Scratch(void* memory)
        : codes(static_cast<int16_t*>(memory)),
          scales(reinterpret_cast<float*>(codes + panel * part)),
          biases(scales + panel * part / 32),
          sums(biases + panel * part / 32) {}
    static long size(const Product& p, const Weights&) {
      return panel * (part * 2 + 2 * part / 32 * 4 + p.m * 4);
    }
  };

  // Lines of memory that will be wanted next, fetched while others are multiplied.
  class Lines {
   public:
    Lines(const Weights& w, long row, long row_end, long k)
        : from_(static_cast<const char*>(w.data) + row * w.row_bytes() + k * w.bits / 8),
          row_bytes_(w.row_bytes()),
          bytes_(smaller(part, w.k - k) * w.bits / 8),
          rows_(smaller(panel, row_end - row)) {}
    void fetch(long n) {
      for (; n > 0 && rows_ > 0; n--) {
        __builtin_prefetch(from_ + at_);
        at_ += 64;
        if (at_ >= bytes_) {
          at_ = 0;
          from_ += row_bytes_;
          rows_--;
        }
      }
    }

   private:
    const char* from_;
    long row_bytes_, bytes_, rows_, at_ = 0;
  };

  // Writes elements [k, k_end) of `width` rows to every `vectors`-th vector from `to` on. A row is `rows` apart from the one before,
  // until the last.
  template <int BITS>
  static void expand(const Weights& w, long row, long row_end, long k, long k_end, int16_t* to) {
    const typename V::Unpack unpack(w.bits);
    const uint8_t* from[width];
    for (long i = 0; i < width; i++) {
      from[i] = static_cast<const uint8_t*>(w.data) + smaller(row + i, row_end - 1) * w.row_bytes();
    }
    constexpr long codes = 2 * width;
    for (; k < k_end; k += codes, to += codes * panel) {
      const long at = k * w.bits / 8;
      // What is loaded may be more than the codes, and the end of a row the end of the memory.
      const bool is_last = BITS == 0 && w.row_bytes() - at < codes;
      Codes rows[width];
#pragma GCC unroll 16
      for (long i = 0; i < width; i++) {
        uint8_t last[codes];
        const uint8_t* here = from[i] + at;
        if (is_last) {
          std::memcpy(last, here, codes * w.bits / 8);
          here = last;
        }
        rows[i] = V::template expand<BITS>(unpack, here);
      }
      V::turn(rows);
#pragma GCC unroll 16
      for (long i = 0; i < width; i++) {
        V::store(to + i * 2 * panel, rows[i]);
      }
    }
  }

  // Scales or biases of `panel` rows and groups [g, g_end), group by group.
  static void expand_scales(const Weights& w, const void* from, long row, long row_end, long g, long g_end, float* to) {
    for (; g < g_end; g += width, to += width * panel) {
      for (long v = 0; v < V::vectors; v++) {
        Codes rows[width];
        for (long i = 0; i < width; i++) {
          long at = smaller(row + v * width + i, row_end - 1) * w.groups() + g;
          rows[i] = V::bits(some_scales<V>(w.scale_type, from, at, w.groups() - g));
        }
        V::turn(rows);
        for (long i = 0; i < smaller(width, g_end - g); i++) {
          V::store(to + i * panel + v * width, V::real(rows[i]));
        }
      }
    }
  }

  // Sums of products of R rows of x with a panel, over the codes to `end`.
  template <int R>
  static INLINE void sum_products(const char* x, long size, const int16_t* codes, const int16_t* end, Sums (&to)[R][V::vectors]) {
    Sums sums[R][V::vectors];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < V::vectors; v++) {
        sums[r][v] = V::none_yet();
      }
    }
    for (; codes < end; codes += 2 * panel, x += 2 * sizeof(int16_t)) {
      Codes of_w[V::vectors];
#pragma GCC unroll 8
      for (int v = 0; v < V::vectors; v++) {
        of_w[v] = V::load(codes + v * 2 * width);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        Codes of_x = V::pair(x + r * size);
#pragma GCC unroll 8
        for (int v = 0; v < V::vectors; v++) {
          sums[r][v] = V::add(sums[r][v], of_x, of_w[v]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < V::vectors; v++) {
        to[r][v] = sums[r][v];
      }
    }
  }

  // Adds products of groups [g, g_end) of R rows of x with a panel to sums, which begin here if `first`.
  template <int R>
  static void tile(const Weights& w, const Scratch& s, const char* packed, long g, long g_end, bool first, float* sums, Lines& next) {
    const long size = row_size(w), step = w.group * panel;
    const int16_t* codes = s.codes;
    const float *scales = s.scales, *biases = s.biases;
    for (; g < g_end; g++, codes += step, scales += panel, biases += panel) {
      // All of a panel's lines with the first rows of x.
      next.fetch(panel * w.group * w.bits / 8 / 64);
      Sums whole[R][V::vectors];
      sum_products<R>(packed + 2 * g * w.group, size, codes, codes + step, whole);
      for (int r = 0; r < R; r++) {
        Row row(packed + r * size, w);
        Real scale = V::all(row.scales[g]), sum = V::all(row.sums[g]);
#pragma GCC unroll 8
        for (int v = 0; v < V::vectors; v++) {
          float* to = sums + r * panel + v * width;
          Real biased = V::fma(V::load(biases + v * width), sum, first ? V::zero() : V::load(to));
          V::store(to, V::fma(V::from(whole[r][v]), V::multiply(V::load(scales + v * width), scale), biased));
        }
      }
      first = false;
    }
  }

  template <int R = block>
  static void tile_of(long rows, const Weights& w, const Scratch& s, const char* packed, long g, long g_end, bool first, float* sums, Lines& next) {
    if constexpr (R > 1) {
      if (rows < R) {
        return tile_of<R - 1>(rows, w, s, packed, g, g_end, first, sums, next);
      }
    }
    tile<R>(w, s, packed, g, g_end, first, sums, next);
  }

  template <int BITS>
  static void rows_by(const Product& p, const Weights& w, const char* packed, long row, long row_end, void* scratch) {
    const Scratch s(scratch);
    for (; row < row_end; row += panel) {
      for (long k = 0; k < w.k; k += part) {
        const long k_end = smaller(k + part, w.k), g = k / w.group, g_end = k_end / w.group;
        for (long v = 0; v < V::vectors; v++) {
          expand<BITS>(w, row + v * width, row_end, k, k_end, s.codes + v * 2 * width);
        }
        expand_scales(w, w.scales, row, row_end, g, g_end, s.scales);
        expand_scales(w, w.biases, row, row_end, g, g_end, s.biases);
        Lines next = k_end < w.k ? Lines(w, row, row_end, k_end) : Lines(w, row + panel, row_end, 0);
        for (long i = 0; i < p.m; i += block) {
          tile_of(smaller(block, p.m - i), w, s, packed + i * row_size(w), g, g_end, k == 0, s.sums + i * panel, next);
        }
      }
      for (long i = 0; i < p.m; i++) {
        write(p.type, s.sums + i * panel, smaller(panel, row_end - row), static_cast<uint16_t*>(p.y[i]) + row);
      }
    }
  }
  static void rows(const Product& p, const Weights& w, const void* packed, long row, long row_end, void* scratch) {
    auto by = w.bits == 4 ? rows_by<4> : w.bits == 8 ? rows_by<8> : rows_by<0>;
    by(p, w, static_cast<const char*>(packed), row, row_end, scratch);
  }
};

template <class V>
constexpr Whole tiles_of = {
    WholeTiles<V>::panel,
    WholeTiles<V>::block,
    WholeTiles<V>::packed_size,
    WholeTiles<V>::pack,
    WholeTiles<V>::Scratch::size,
    WholeTiles<V>::rows};

} // namespace
} // namespace mlxrs::matmul
