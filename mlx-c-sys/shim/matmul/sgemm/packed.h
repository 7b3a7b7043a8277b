// Products with many rows and columns, for any vector type V (see tile.h). They read packed copies of A and B, in the
// order of use.
//
// The lanes of a vector are columns of C, so nothing is added across lanes. The lanes of product.h's order of sums are
// computed one after the other: lane l of an element sums k = l, l + width, ... In the copies, all k of a lane are
// adjacent, and the lanes are in the order of the leaves of the tree, from left to right. After a lane, the complete
// parts of the tree are added, like carries of a binary counter: after leaf i, as many additions as i has trailing one
// bits.
#pragma once

#include <type_traits>

#include "tile.h"

namespace mlxrs::sgemm {
namespace {

template <class V>
struct Packed {
  using Vector = typename V::type;

  // A tile of C: `side` rows, `cols` columns.
  static constexpr long width = V::width, side = V::side, cols = V::wide * width;
  // The most partial sums of a tile: those of the tree, and one that the end of a block of k interrupted.
  static constexpr int levels = __builtin_ctz(V::width), waiting = levels + 1;
  static constexpr long tile_floats = side * cols, open_floats = waiting * tile_floats;
  // The k in a block. The columns of a block stay in L1.
  static constexpr long block_size = 24 * 1024 / (4 * cols);

  // The leaf of the tree for each lane, which is the lane's number with reversed bits.
  struct Leaves {
    long of[width] = {};
    constexpr Leaves() {
      for (long lane = 0; lane < width; lane++) {
        for (int bit = 0; bit < levels; bit++) {
          of[lane] |= (lane >> bit & 1) << (levels - 1 - bit);
        }
      }
    }
  };
  static constexpr Leaves leaves{};

  // The k in a lane.
  static long steps(const Product& p) {
    return ceil_div(p.k, width);
  }
  // One more cache line, because else lines that are written together would fall into the same cache sets.
  static long leaf_size(long steps, long height) {
    return steps * height + 16;
  }
  static long panel_size(const Product& p, long height) {
    return ceil_div(width * leaf_size(steps(p), height), 16) * 16;
  }
  static long size(const Product& p, long rows, long height) {
    return ceil_div(rows, height) * panel_size(p, height);
  }

  // The elements that `turn` reads from each of four rows.
  template <typename T>
  static constexpr long span = std::is_same_v<T, Bf16> ? 8 : 4;

  // Transposes: element k of each of the four rows goes to to[k].
  static void turn(const float* from, long row_stride, Four* to) {
    for (int r = 0; r < 4; r++) {
      to[r] = load4(from + r * row_stride);
    }
    turn4(to);
  }
  static void turn(const F16* from, long row_stride, Four* to) {
    for (int r = 0; r < 4; r++) {
      to[r] = V::four(from + r * row_stride);
    }
    turn4(to);
  }
  // The same for bf16. Two neighbouring elements are transposed as one.
  static void turn(const Bf16* from, long row_stride, Four* to) {
    Four pairs[4];
    for (int r = 0; r < 4; r++) {
      __builtin_memcpy(&pairs[r], from + r * row_stride, sizeof(Four));
    }
    turn4(pairs);
    for (int k = 0; k < 4; k++) {
      FourBits bits = reinterpret_cast<FourBits>(pairs[k]);
      to[2 * k] = reinterpret_cast<Four>(bits << 16);
      to[2 * k + 1] = reinterpret_cast<Four>(bits & 0xffff0000);
    }
  }
  static float one(const float* p) {
    return *p;
  }
  static float one(const F16* p) {
    const F16 first[4] = {*p};
    return V::four(first)[0];
  }
  static float one(const Bf16* p) {
    return __builtin_bit_cast(float, uint32_t{p->bits} << 16);
  }

  // A panel of `height` rows, with the start of each lane: element k of row r is at at(k) + r.
  struct Panel {
    float* lanes[width];
    long height;

    Panel(float* memory, long height, long k) : height(height) {
      for (long lane = 0; lane < width; lane++) {
        lanes[lane] = memory + leaves.of[lane] * leaf_size(ceil_div(k, width), height);
      }
    }
    float* at(long k) const {
      return lanes[k % width] + k / width * height;
    }
  };

  // Copies `rows` rows into panels of `height` rows. Missing rows and elements become zeros.
  template <typename T>
  static void pack(float* memory, long height, const T* from, long row_stride, long k_stride, long rows, const Product& p) {
    for (; rows > 0; rows -= height, from += height * row_stride, memory += panel_size(p, height)) {
      const Panel panel(memory, height, p.k);
      if (k_stride == 1) {
        pack_along(panel, from, row_stride, smaller(rows, height), p.k);
      } else {
        pack_across(panel, from, row_stride, k_stride, smaller(rows, height), p.k);
      }
      for (long k = p.k; k < steps(p) * width; k++) {
        for (long r = 0; r < height; r++) {
          panel.at(k)[r] = 0;
        }
      }
    }
  }

  // Copies rows whose elements are adjacent along k.
  template <typename T>
  static void pack_along(const Panel& panel, const T* from, long row_stride, long rows, long k_end) {
    // Copies a cache line at a time. Rows are often a power of two apart, so only few of them fit in L1 together.
    constexpr long line = 64 / sizeof(T), turned = span<T>, together = turned < width ? turned : width;
    const long fours = rows - rows % 4;
    for (long k = 0; k < k_end; k += line) {
      const long end = smaller(k_end, k + line), full = end - end % turned;
      for (long r = 0; r < fours; r += 4) {
        for (long at = k; at < full; at += turned) {
          Four numbers[turned];
          turn(from + r * row_stride + at, row_stride, numbers);
          for (long first = 0; first < turned; first += together) {
            float* const* lanes = panel.lanes + (at + first) % width;
            const long place = (at + first) / width * panel.height + r;
            for (long i = 0; i < together; i++) {
              store4(lanes[i] + place, numbers[first + i]);
            }
          }
        }
      }
      for (long at = k; at < end; at++) {
        float* to = panel.at(at);
        for (long r = at < full ? fours : 0; r < panel.height; r++) {
          to[r] = r < rows ? one(from + r * row_stride + at) : 0;
        }
      }
    }
  }

  // Copies rows with other strides.
  template <typename T>
  static void pack_across(const Panel& panel, const T* from, long row_stride, long k_stride, long rows, long k_end) {
    for (long k = 0; k < k_end; k++, from += k_stride) {
      float* to = panel.at(k);
      long r = 0;
      for (; row_stride == 1 && r + width <= rows; r += width) {
        V::store(to + r, V::load(from + r));
      }
      for (; r < panel.height; r++) {
        to[r] = r < rows ? one(from + r * row_stride) : 0;
      }
    }
  }

  static long rows_size(const Product& p, long rows) {
    return size(p, rows, side);
  }
  static void pack_rows(const Product& p, long row, long row_end, float* rows) {
    pack(rows, side, p.a + row * p.a_row, p.a_row, p.a_k, row_end - row, p);
  }
  static long cols_size(const Product& p, long n) {
    return size(p, n, cols);
  }
  template <typename T>
  static void pack_cols(const Product& p, long col, long col_end, float* packed) {
    pack(packed, cols, reinterpret_cast<const T*>(p.b) + col * p.b_col, p.b_col, p.b_k, col_end - col, p);
  }
  static long open_size(const Product&, long rows) {
    return ceil_div(rows, side) * open_floats;
  }

  // The address of a partial sum of a tile.
  static float* at(float* open, int level, int i, int j) {
    return open + level * tile_floats + i * cols + j * width;
  }

  // A range [begin, end) of k for a tile, as places in the panels.
  struct Block {
    const float *rows, *columns;
    long steps, begin, end;
    // The partial sums. After the last block the first of them are the result.
    float* open;
    // Memory to prefetch meanwhile: the next panel of rows, and `fetch_step` bytes from `fetch` on for each k.
    const float* next;
    const char* fetch;
    long fetch_step;
  };

  // Adds a block to the sums of a tile with WIDE vectors of columns.
  template <int WIDE>
  static void tile(const Block& block) {
    Vector sum[side][WIDE];
    auto each = [&](auto body) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int i = 0; i < side; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < WIDE; j++) {
          body(i, j);
        }
      }
    };
    const long steps = block.steps, end = block.end, ahead = reinterpret_cast<const char*>(block.next) - reinterpret_cast<const char*>(block.rows);
    const char* fetch = block.fetch;
    float* open = block.open;
    const bool is_cut = block.begin % steps != 0;
    each([&](int i, int j) __attribute__((always_inline)) {
      sum[i][j] = is_cut ? V::load(at(open, levels, i, j)) : V::zero();
    });
    for (long place = block.begin; place < end;) {
      const long leaf = place / steps, step = place % steps, stop = smaller(end, (leaf + 1) * steps);
      const float* row = block.rows + leaf * leaf_size(steps, side) + step * side;
      const float* column = block.columns + leaf * leaf_size(steps, cols) + step * cols;
      for (; place < stop; place++, row += side, column += cols, fetch += block.fetch_step) {
        Vector b[WIDE];
#pragma GCC unroll 4
        for (int j = 0; j < WIDE; j++) {
          b[j] = V::load(column + j * width);
        }
        __builtin_prefetch(reinterpret_cast<const char*>(row) + ahead);
        __builtin_prefetch(fetch);
#pragma GCC unroll 8
        for (int i = 0; i < side; i++) {
          const Vector a = V::set1(row[i]);
#pragma GCC unroll 4
          for (int j = 0; j < WIDE; j++) {
            sum[i][j] = V::fma(a, b[j], sum[i][j]);
          }
        }
      }
      int level = levels;
      if (place == (leaf + 1) * steps) {
        for (level = 0; leaf >> level & 1; level++) {
          each([&](int i, int j) __attribute__((always_inline)) { sum[i][j] = V::add(V::load(at(open, level, i, j)), sum[i][j]); });
        }
        level %= levels;
      }
      each([&](int i, int j) __attribute__((always_inline)) {
        V::store(at(open, level, i, j), sum[i][j]);
        sum[i][j] = V::zero();
      });
    }
  }

  static void write(const Product& p, const float* sums, float* c, long rows, long n) {
    for (long i = 0; i < rows; i++, sums += cols, c += p.c_row) {
      long j = 0;
      for (; p.c_col == 1 && j + 4 <= n; j += 4) {
        finish4(p, c + j, load4(sums + j));
      }
      for (; j < n; j++) {
        finish(p, c + j * p.c_col, sums[j]);
      }
    }
  }

  static void multiply(
      const Product& p, const Part& part, const float* rows, const float* columns, float* open, const MemoryRange& meanwhile) {
    static_assert(V::wide == 2 || V::wide == 3, "one case for each number of vectors");
    const long k = steps(p) * width, row_panel = panel_size(p, side);
    const long tiles = ceil_div(part.row_end - part.row, side) * ceil_div(part.col_end - part.col, cols);
    // Without memory to prefetch, an address of a mapped page is used, because a prefetch of an unmapped address walks
    // the page table each time.
    const char* fetch = reinterpret_cast<const char*>(meanwhile.bytes > 0 ? meanwhile.from : columns);
    const long fetch_step = ceil_div(meanwhile.bytes, tiles * k);
    for (long j = part.col; j < part.col_end; j += cols, columns += panel_size(p, cols)) {
      const long valid = smaller(cols, part.col_end - j);
      for (long begin = 0; begin < k; begin += block_size) {
        Block block{rows, columns, steps(p), begin, smaller(k, begin + block_size), open, nullptr, fetch, fetch_step};
        for (long i = part.row; i < part.row_end; i += side, block.rows += row_panel, block.open += open_floats) {
          block.next = i + side < part.row_end ? block.rows + row_panel : rows + block_size * side;
          switch (ceil_div(valid, width)) {
            case 1:
              tile<1>(block);
              break;
            case 2:
              tile<2>(block);
              break;
            default:
              tile<V::wide>(block);
          }
          block.fetch += fetch_step * (block.end - begin);
          if (block.end == k) {
            write(p, block.open, p.c + i * p.c_row + j * p.c_col, smaller(side, part.row_end - i), valid);
          }
        }
        fetch = block.fetch;
      }
    }
  }
};

} // namespace
} // namespace mlxrs::sgemm
