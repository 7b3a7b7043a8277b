// Many rows of x in whole numbers, for any vectors V. Included by the file of each instruction set.
//
// x is packed so that a lane of a vector is a row of x, and holds a few numbers of it. A panel of weights is widened to whole numbers. A
// few codes of a row of weights are broadcast to all lanes and multiplied with a vector of x. Sums are exact within a group and added group
// by group, so that the width of vectors does not change them. Where x has fewer rows than there are lanes, each row is in two lanes, for two
// rows of weights, whose codes are interleaved.
//
// V has:
//   Real, Sums     `width` numbers of f32 and of whole numbers; real numbers as in int16_few_rows.h
//   of_w           rows of weights that go together, in lanes of their own
//   panel          rows of weights that are written out at a time: a multiple of of_w * side and of of_w * width
//   Code, Codes    what codes are written out as, and a vector of `codes` of them
//   in_lane        codes that go to a lane
//   few, X         those of all rows that go together, to all their lanes, and a vector of as many numbers of x for each lane
//   spread         a real number of each row that goes together, to all its lanes
//   side, across   a tile of sums is `side` times of_w rows of weights by `across` vectors of x; it should fit in registers with as many real numbers
//   Unpack, expand<FORM>   the next codes written out; `loaded_of_any` bytes are loaded where FORM is any
//   groups<FORM>   the next `scales` scales and biases, as far as they are there
//   put            writes codes, or real numbers, of the rows that go together in turns
//   Layout, lay    packs a group of x for the codes' order
//   none_yet, add, from    of sums
//   transpose      exchanges rows and columns of `width` by `width` numbers
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
  // Rows of x that are packed as one, and of weights that go together.
  static constexpr long of_w = V::of_w, of_x = width / of_w;
  // Rows of weights, and elements of each, that are written out before they are multiplied: they stay in the first cache.
  static constexpr long panel = V::panel, part = 4096 / width;
  static_assert(panel % (of_w * side) == 0 && panel % (of_w * width) == 0);

  // `of_x` rows of x: whole numbers as `lay` leaves them; for each group the scales; for each the sums.
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

  // What a task needs: a part of a panel's rows, the scales and biases of all their groups, and sums for all rows of x. Of rows that go
  // together, codes and scales stand in turns.
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

  // What the next panel will be made of, fetched while this one is multiplied: behind the end of the memory that is no harm.
  class Next {
   public:
    Next(const Weights& w, long row)
        : codes_(w.row(row)),
          scales_(static_cast<const char*>(w.scales) + row * scale_bytes(w)),
          biases_(w.biases == nullptr ? scales_ : static_cast<const char*>(w.biases) + row * scale_bytes(w)),
          code_bytes_(side * of_w * w.group * w.bits / 8),
          group_bytes_(side * of_w * scale_bytes(w) / w.groups()) {}
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

  // Writes elements [k, k_end) of the rows out that go together.
  template <Form FORM>
  static void expand(const Weights& w, const typename V::Unpack& unpack, const std::array<long, of_w>& rows, long k, long k_end, Code* to) {
    constexpr long codes = V::codes;
    const long bits = FORM == Form::any ? w.bits : bits_of(FORM), bytes = codes * bits / 8;
    // What is loaded may be more than the codes, and the end of a row the end of the memory.
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

  // Adds products of groups [g, g_end) of `side` times the rows that go together, of a panel and from `row` on, with X vectors of x to
  // sums, of which those that go together have `distance`. They begin here if `first`.
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

  // Sums of a panel's rows, of which those that go together have `distance`, rounded to rows of y from `row` on.
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
      // Those that go together from q on. Behind the last row that there is, it stands again.
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
