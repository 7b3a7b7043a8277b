// Integer products with many rows of x, for any vector type V. Each instruction set's file includes this header.
//
// A lane of a vector is a row of x and holds a few of its elements. A panel of weights is widened to integers. A few
// codes of a row of weights are broadcast to all lanes and multiplied with a vector of x. Sums are exact within a group
// and added group by group, so the result does not depend on the vector width. If x has fewer rows than there are
// lanes, each row of x is in two lanes, for two rows of weights, whose codes are interleaved.
//
// V has:
//   Real, Sums     vectors of `width` f32 and of `width` integers; the functions of Real are those of int16_few_rows.h
//   of_w           the number of interleaved rows of weights, each in lanes of its own
//   panel          the rows of weights that are widened at a time: a multiple of of_w * side and of of_w * width
//   Code, Codes    the type of a widened code, and a vector of `codes` codes
//   in_lane        the codes in a lane
//   few, X         `in_lane` codes of all interleaved rows, broadcast; and a vector with as many elements of x in a lane
//   spread         one f32 of each interleaved row, broadcast
//   side, across   a register tile has `side` times of_w rows of weights by `across` vectors of x; its integer sums and
//                  its f32 sums should fit in registers together
//   Unpack, expand<FORM>   the next codes, widened; with Form::any, `loaded_of_any` bytes are loaded
//   groups<FORM>   the next `scales` scales and biases, as far as they exist
//   put            interleaves and stores codes or f32 numbers of the interleaved rows
//   Layout, lay    packs a group of x in the order of the codes
//   none_yet, add, from    of Sums
//   transpose      transposes `width` by `width` numbers
#pragma once

#include <array>

#include "int_codes.h"

namespace mlxrs::matmul {
namespace {

template <class V>
struct IntManyRows {
  using Real = typename V::Real;
  using Sums = typename V::Sums;
  using Code = typename V::Code;

  static constexpr long width = V::width, side = V::side;
  // The rows of x in a packed block; of_w is the number of interleaved rows of weights.
  static constexpr long of_w = V::of_w, of_x = width / of_w;
  // The rows of weights, and the elements of each, that are widened before they are multiplied. They stay in L1.
  static constexpr long panel = V::panel, part = 4096 / width;
  static_assert(panel % (of_w * side) == 0 && panel % (of_w * width) == 0);

  // A packed block of `of_x` rows of x: integers in the order of `lay`, then the scales of each group, then the sums of
  // each group.
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
      for (long r = 0; r < width; r += of_w) {
        Scaled scaled{0, 0};
        if (const long i = first + r / of_w; i < p.m) {
          scaled = to_whole(p.type, static_cast<const uint16_t*>(p.x[i]) + g * w.group, w.group, whole[r]);
        }
        for (long lane = r; lane < r + of_w; lane++) {
          if (lane > r) {
            std::memcpy(whole[lane], whole[r], w.group * sizeof(int16_t));
          }
          scales[g * width + lane] = scaled.scale;
          sums[g * width + lane] = scaled.sum;
        }
      }
      V::lay(layout, whole, w.group, to);
    }
  }

  // The scratch memory of a task: a part of a panel's rows as codes, the scales and biases of all their groups, and
  // sums for all rows of x. Codes and scales of interleaved rows alternate.
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
      return panel * (static_cast<long>(sizeof(Code)) * part + 8 * round_up(w.groups(), V::scales) + 4 * round_up(p.m, of_x));
    }
  };

  // Prefetches the memory of the next panel while this one is multiplied. A prefetch beyond the end of the memory is
  // harmless.
  class Next {
   public:
    Next(const Weights& w, long row)
        : codes_(w.row(row)),
          scales_(static_cast<const char*>(w.scales) + row * scale_bytes(w)),
          biases_(w.biases == nullptr ? scales_ : static_cast<const char*>(w.biases) + row * scale_bytes(w)),
          code_bytes_(side * of_w * w.group * w.bits / 8),
          group_bytes_(side * of_w * scale_bytes(w) / w.groups()) {}
    // Prefetches the share of one group and one tile.
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

  // Widens elements [k, k_end) of the interleaved rows.
  template <Form FORM>
  static void expand(const Weights& w, const typename V::Unpack& unpack, const std::array<long, of_w>& rows, long k, long k_end, Code* to) {
    constexpr long codes = V::codes;
    const long bits = FORM == Form::any ? w.bits : bits_of(FORM), bytes = codes * bits / 8;
    // A load may read beyond the codes, and the memory may end with the row.
    const long loaded = FORM == Form::any ? V::loaded_of_any : bytes;
    const long safe = smaller(k_end, w.k - (loaded * 8 + bits - 1) / bits + codes);
    const uint8_t* from[of_w];
    for (long i = 0; i < of_w; i++) {
      from[i] = static_cast<const uint8_t*>(w.data) + rows[i] * w.row_bytes() + k * bits / 8;
    }
    auto put = [&](auto at) ALWAYS_INLINE {
      typename V::Codes expanded[of_w];
#pragma GCC unroll 2
      for (long i = 0; i < of_w; i++) {
        expanded[i] = V::template expand<FORM>(unpack, at(i));
        from[i] += bytes;
      }
      V::put(to, expanded);
      k += codes;
      to += of_w * codes;
    };
    while (k + codes <= safe) {
      put([&](long i) ALWAYS_INLINE { return from[i]; });
    }
    while (k < k_end) {
      uint8_t last[of_w][codes] = {};
      put([&](long i) ALWAYS_INLINE -> const uint8_t* {
        std::memcpy(last[i], from[i], smaller(codes, w.k - k) * bits / 8);
        return last[i];
      });
    }
  }

  // Adds the products of groups [g, g_end) with X vectors of x to the sums, for `side` times the interleaved rows from
  // row `row` of the panel on. The sums of interleaved rows are `distance` apart. They start at zero if `first`.
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
    sums += row / of_w * distance;
    Real all[side][X];
    each([&](int q, int v) ALWAYS_INLINE { all[q][v] = first ? V::zero() : V::load(sums + q * distance + v * width); });
    const Code* codes = s.codes + row * part;
    const float *scales = s.scales + row * s.groups + g * of_w, *biases = s.biases + row * s.groups + g * of_w;
    const int16_t* x[X];
    const float *x_scales[X], *x_sums[X];
    for (int v = 0; v < X; v++) {
      Columns columns(packed + v * packed_size(w, 0), w);
      x[v] = columns.whole + g * w.group * width;
      x_scales[v] = columns.scales + g * width;
      x_sums[v] = columns.sums + g * width;
    }
    for (; g < g_end; g++, scales += of_w, biases += of_w) {
      if (next != nullptr) {
        next->fetch();
      }
      Sums whole[side][X];
      each([&](int q, int v) ALWAYS_INLINE { whole[q][v] = V::none_yet(); });
      for (const Code* end = codes + of_w * w.group; codes < end; codes += of_w * V::in_lane) {
        typename V::X x_now[X];
#pragma GCC unroll 2
        for (int v = 0; v < X; v++) {
          x_now[v] = V::load_x(x[v]);
          x[v] += V::in_lane * width;
        }
#pragma GCC unroll 12
        for (int q = 0; q < side; q++) {
          auto few = V::few(codes + q * of_w * part);
#pragma GCC unroll 2
          for (int v = 0; v < X; v++) {
            V::add(whole[q][v], x_now[v], few);
          }
        }
      }
      Real scales_of_x[X], sums_of_x[X];
#pragma GCC unroll 2
      for (int v = 0; v < X; v++) {
        scales_of_x[v] = V::load(x_scales[v]);
        sums_of_x[v] = V::load(x_sums[v]);
        x_scales[v] += width;
        x_sums[v] += width;
      }
      each([&](int q, int v) ALWAYS_INLINE {
        Real scale = V::multiply(V::spread(scales + q * of_w * s.groups), scales_of_x[v]);
        Real biased = V::multiply(V::spread(biases + q * of_w * s.groups), sums_of_x[v]);
        all[q][v] = V::sum_of(all[q][v], V::fma(V::from(whole[q][v]), scale, biased));
      });
    }
    each([&](int q, int v) ALWAYS_INLINE { V::store(sums + q * distance + v * width, all[q][v]); });
  }

  // Rounds the sums of a panel's rows and writes them to y, from row `row` on. The sums of interleaved rows are
  // `distance` apart.
  static void write_rows(const Product& p, const float* sums, long distance, long row, long row_end) {
    for (long i = 0; i < p.m; i += of_x) {
      const float* from = sums + i * of_w;
      for (long q = row; q < smaller(row + panel, row_end); q += width * of_w, from += width * distance) {
        typename V::Words turned[width];
        for (long r = 0; r < width; r++) {
          turned[r] = V::bits(V::load(from + r * distance));
        }
        V::transpose(turned);
        for (long j = 0; j < smaller(of_x, p.m - i); j++) {
          Real rows[of_w];
          for (long l = 0; l < of_w; l++) {
            rows[l] = V::real(turned[j * of_w + l]);
          }
          float y[width * of_w];
          V::put(y, rows);
          write(p.type, y, smaller(width * of_w, row_end - q), static_cast<uint16_t*>(p.y[i + j]) + q);
        }
      }
    }
  }

  template <Form FORM>
  static void rows_by(const Product& p, const Weights& w, const char* packed, long row, long row_end, void* scratch) {
    const Scratch s(scratch, w);
    const typename V::Unpack unpack(w.bits);
    const long distance = round_up(p.m, of_x) * of_w, size = packed_size(w, 0), groups = w.groups();
    for (; row < row_end; row += panel) {
      const long rows = smaller(round_up(row_end - row, side * of_w), panel);
      Next next(w, row + panel);
      // The interleaved rows from row q on. The last row is repeated if there are fewer.
      auto together = [&](long q) ALWAYS_INLINE {
        std::array<long, of_w> at;
        for (long i = 0; i < of_w; i++) {
          at[i] = smaller(row + q + i, row_end - 1);
        }
        return at;
      };
      for (long q = 0; q < rows; q += of_w) {
        const auto at = together(q);
        for (long g = 0; g < groups; g += V::scales) {
          Real scales[of_w], biases[of_w];
          for (long i = 0; i < of_w; i++) {
            const auto [scale, bias] = V::template groups<FORM>(w, at[i] * groups + g, groups - g);
            scales[i] = scale;
            biases[i] = bias;
          }
          V::put(s.scales + q * s.groups + g * of_w, scales);
          V::put(s.biases + q * s.groups + g * of_w, biases);
        }
      }
      for (long k = 0; k < w.k; k += part) {
        const long k_end = smaller(k + part, w.k), g = k / w.group, g_end = k_end / w.group;
        for (long q = 0; q < rows; q += of_w) {
          expand<FORM>(w, unpack, together(q), k, k_end, s.codes + q * part);
        }
        for (long i = 0; i < p.m; i += V::across * of_x) {
          const char* x = packed + i / of_x * size;
          auto* by = V::across == 2 && i + of_x < p.m ? tile<V::across> : tile<1>;
          for (long q = 0; q < rows; q += side * of_w) {
            by(w, s, q, x, g, g_end, k == 0, s.sums + i * of_w, distance, i == 0 ? &next : nullptr);
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
constexpr IntKernels many_rows_of = {
    IntManyRows<V>::side * IntManyRows<V>::of_w,
    IntManyRows<V>::of_x,
    IntManyRows<V>::packed_size,
    IntManyRows<V>::pack,
    IntManyRows<V>::Scratch::size,
    IntManyRows<V>::rows};

} // namespace
} // namespace mlxrs::matmul
