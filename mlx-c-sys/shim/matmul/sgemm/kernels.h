// The sgemm kernels for any vector type V (see tile.h). Each instruction set's file includes this header once. All
// functions have internal linkage and call nothing of the standard library, so the linker cannot use a function
// compiled for one instruction set in code for another.
#pragma once

#include "packed.h"
#include "tile.h"

namespace mlxrs::sgemm {
namespace {

// The length of a block of k in vectors. The rows and columns of a tile stay in L1.
constexpr long block_steps = 32;

// The height of the panels of A for `direct`. Few rows are one or two tiles, so that B is read only once or twice.
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

// Sums a band of columns. Lanes are columns in memory order, so that the rows of B are read in order, each once.
template <class V, int ROWS>
void stream_rows(const Product& p, long begin, long end) {
  using T = typename V::type;
  // At most 32 KiB of sums, which is the size of L1.
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

template <class V>
constexpr Kernels kernels_of(const char* name) {
  using P = Packed<V>;
  return {name, direct_size<V>, direct_pack<V>, direct<V, float>, direct_cols<V>, direct<V, Bf16>, direct<V, F16>, stream<V>,
          P::cols, P::rows_size, P::pack_rows, P::cols_size, P::template pack_cols<float>,
          P::template pack_cols<Bf16>, P::template pack_cols<F16>, P::open_size, P::multiply};
}

} // namespace
} // namespace mlxrs::sgemm
