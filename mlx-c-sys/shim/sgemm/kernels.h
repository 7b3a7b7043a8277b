// The kernels, for any vector type V (see tile.h). Included once by the file of each instruction set, which is compiled
// for it: everything here has internal linkage, and nothing of the standard library is called, so that no function
// compiled for one instruction set can be linked into code for another.
#pragma once

#include "tile.h"

namespace mlxrs::sgemm {
namespace {

// How much of k a block takes: a tile's rows and columns stay in the first cache.
constexpr long block_steps = 32;

// The height of the panels in which `direct` has A: few rows are one tile or two, so that B passes by but once or twice.
template <class V>
long direct_height(const Product& p) {
  return p.m <= max_rows ? p.m : p.m <= 8 ? 4 : V::rows;
}

template <class V>
long direct_size(const Product& p) {
  return ceil_div(p.m, direct_height<V>(p)) * direct_height<V>(p) * ceil_div(p.k, V::width) * V::width;
}

template <class V>
void direct_pack(const Product& p, float* rows) {
  long height = direct_height<V>(p), size = height * ceil_div(p.k, V::width) * V::width;
  for (long i = 0; i < p.m; i += height, rows += size) {
    pack<V>(rows, height, p.a + i * p.a_row, p.a_row, p.a_k, p.m - i, 0, p.k);
  }
}

template <class V>
long direct_cols(const Product& p) {
  return cols_for<V>(direct_height<V>(p));
}

template <class V, typename T>
void direct(const Product& p, const float* rows, long begin, long end) {
  constexpr long tile_floats = V::rows * V::cols * V::width;
  alignas(64) float put_away[ceil_div(max_direct_rows, V::rows) * tile_floats];
  long steps = p.k / V::width, tail = p.k % V::width;
  long height = direct_height<V>(p), panel = height * ceil_div(p.k, V::width) * V::width;
  long tiles = ceil_div(p.m, height), per_block = tiles == 1 ? steps : block_steps;
  for (long j = begin; j < end;) {
    // Full tiles, then single columns.
    long full = direct_cols<V>(p);
    long cols = end - j >= full ? full : 1;
    bool last = false;
    for (long s = 0; !last; s += per_block) {
      last = s + per_block >= steps;
      long now = last ? steps - s : per_block;
      Operand<T> b{reinterpret_cast<const T*>(p.b) + j * p.b_col + s * V::width, p.b_col, V::width};
      float* kept = put_away;
      for (long t = 0; t < tiles; t++, kept += tile_floats) {
        long i = t * height;
        Operand<float> a{rows + t * panel + s * height * V::width, V::width, height * V::width};
        Target to{p.c + i * p.c_row + j * p.c_col, smaller(height, p.m - i), cols};
        tile_of<V>(height, p, a, b, now, last ? tail : 0, s == 0, last, kept, to);
      }
    }
    j += cols;
  }
}

// Sums a band of columns, lane by lane in memory: the rows of B are read in order, each once.
template <class V, int ROWS>
void stream_rows(const Product& p, long begin, long end) {
  using T = typename V::type;
  // At most 32 KiB of sums: the first cache.
  constexpr long band = 512 / ROWS * 16 / V::width / 64 * 64;
  alignas(64) float sums[V::width][ROWS][band];
  long tail = p.k % V::width;
  for (long j0 = begin; j0 < end; j0 += band) {
    long cols = smaller(band, end - j0);
    long full = cols - cols % V::width;
    for (int l = 0; l < V::width; l++) {
      for (int i = 0; i < ROWS; i++) {
        for (long j = 0; j < cols; j += V::width) {
          V::store(&sums[l][i][j], V::zero());
        }
      }
    }
    for (long k = 0; k < p.k + (tail > 0 ? V::width - tail : 0); k++) {
      auto& lane = sums[k % V::width];
      T row[ROWS];
      for (int i = 0; i < ROWS; i++) {
        row[i] = k < p.k ? V::set1(p.a[i * p.a_row + k * p.a_k]) : V::zero();
      }
      const float* b = p.b + k * p.b_k + j0;
      auto add = [&](long j, T col) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; i++) {
          V::store(&lane[i][j], V::fma(row[i], col, V::load(&lane[i][j])));
        }
      };
      if (k >= p.k) {
        for (long j = 0; j < cols; j += V::width) {
          add(j, V::zero());
        }
        continue;
      }
      for (long j = 0; j < full; j += V::width) {
        add(j, V::load(b + j));
      }
      if (full < cols) {
        add(full, V::load_part(b + full, cols - full));
      }
    }
    for (int i = 0; i < ROWS; i++) {
      float* c = p.c + i * p.c_row + j0 * p.c_col;
      for (long j = 0; j < cols; j += V::width) {
        for (int half = V::width / 2; half > 0; half /= 2) {
          for (int l = 0; l < half; l++) {
            V::store(&sums[l][i][j], V::add(V::load(&sums[l][i][j]), V::load(&sums[l + half][i][j])));
          }
        }
      }
      for (long j = 0; j < cols; j++) {
        finish(p, c + j * p.c_col, sums[0][i][j]);
      }
    }
  }
}

template <class V>
void stream(const Product& p, long begin, long end) {
  static_assert(max_stream_rows == 4, "one case for each number of rows");
  switch (p.m) {
    case 1:
      return stream_rows<V, 1>(p, begin, end);
    case 2:
      return stream_rows<V, 2>(p, begin, end);
    case 3:
      return stream_rows<V, 3>(p, begin, end);
    default:
      return stream_rows<V, 4>(p, begin, end);
  }
}

// Columns of B that are packed at a time, in tiles: they stay in the first cache, as do the rows of A that go by.
template <class V>
constexpr long block_tiles = 24 * 1024 / (V::cols * V::width * block_steps * 4);

// The sizes of a part's areas, in floats: its rows, and the two of `work`.
template <class V>
struct Layout {
  long steps, row_tiles, col_tiles;
  long a, b, sums;

  Layout(const Product& p, const Part& part) {
    steps = ceil_div(p.k, V::width);
    row_tiles = ceil_div(part.row_end - part.row, V::rows);
    col_tiles = smaller(block_tiles<V>, ceil_div(part.col_end - part.col, V::cols));
    // Rounded so that each area starts on a cache line.
    a = ceil_div(row_tiles * V::rows * steps * V::width, 16) * 16;
    b = ceil_div(col_tiles * V::cols * smaller(steps, block_steps) * V::width, 16) * 16;
    sums = steps > block_steps ? row_tiles * col_tiles * V::rows * V::cols * V::width : 0;
  }
};

template <class V>
long rows_size(const Product& p, const Part& part) {
  return Layout<V>(p, part).a;
}

template <class V>
void pack_rows(const Product& p, const Part& part, float* rows) {
  Layout<V> layout(p, part);
  for (long t = 0; t < layout.row_tiles; t++) {
    long row = part.row + t * V::rows;
    float* to = rows + t * V::rows * layout.steps * V::width;
    pack<V>(to, V::rows, p.a + row * p.a_row, p.a_row, p.a_k, part.row_end - row, 0, p.k);
  }
}

template <class V>
long packed_size(const Product& p, const Part& part) {
  Layout<V> layout(p, part);
  return layout.b + layout.sums;
}

template <class V>
void packed(const Product& p, const Part& part, const float* a, float* work) {
  Layout<V> layout(p, part);
  float *b = work, *sums = b + layout.b;
  long a_panel = V::rows * layout.steps * V::width;
  for (long j0 = part.col; j0 < part.col_end; j0 += block_tiles<V> * V::cols) {
    long col_tiles = smaller(block_tiles<V>, ceil_div(part.col_end - j0, V::cols));
    for (long s = 0; s < layout.steps; s += block_steps) {
      long steps = smaller(block_steps, layout.steps - s);
      bool last = s + steps == layout.steps;
      long b_panel = V::cols * steps * V::width;
      long k = s * V::width, k_end = smaller(p.k, k + steps * V::width);
      for (long u = 0; u < col_tiles; u++) {
        long col = j0 + u * V::cols;
        pack<V>(b + u * b_panel, V::cols, p.b + col * p.b_col, p.b_col, p.b_k, part.col_end - col, k, k_end);
      }
      float* kept = sums;
      for (long t = 0; t < layout.row_tiles; t++) {
        for (long u = 0; u < col_tiles; u++, kept += V::rows * V::cols * V::width) {
          long row = part.row + t * V::rows, col = j0 + u * V::cols;
          Operand<float> rows{a + t * a_panel + s * V::rows * V::width, V::width, V::rows * V::width};
          Operand<float> cols{b + u * b_panel, V::width, V::cols * V::width};
          Target to{p.c + row * p.c_row + col * p.c_col, part.row_end - row, part.col_end - col};
          tile<V, V::rows, V::cols>(p, rows, cols, steps, 0, s == 0, last, kept, to);
        }
      }
    }
  }
}

template <class V>
constexpr Kernels kernels_of(const char* name) {
  return {name, V::rows, V::cols, direct_size<V>, direct_pack<V>, direct<V, float>, direct_cols<V>,
          direct<V, Bf16>, direct<V, F16>,
          stream<V>, rows_size<V>, pack_rows<V>, packed_size<V>, packed<V>};
}

} // namespace
} // namespace mlxrs::sgemm
