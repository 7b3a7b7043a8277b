// The register tile of sums that all sgemm kernels use, and its panels, for any vector type V.
//
// V has: type, width, rows and cols (of a tile: rows * cols sums and rows + 1 operands fit in registers together),
// zero, set1, load, load_part (the first n elements, then zeros), store, fma, add, and sum4: the sums of the lanes of
// four vectors, each added as the tree that product.h describes.
#pragma once

#include "product.h"

namespace mlxrs::sgemm {
namespace {

typedef float Four __attribute__((vector_size(16)));
typedef uint32_t FourBits __attribute__((vector_size(16)));
typedef float UnalignedFour __attribute__((vector_size(16), aligned(4), may_alias));

inline Four load4(const float* p) {
  return *reinterpret_cast<const UnalignedFour*>(p);
}
inline void store4(float* p, Four v) {
  *reinterpret_cast<UnalignedFour*>(p) = v;
}
// Transposes 4 x 4 numbers.
inline void turn4(Four* rows) {
  Four low = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5), high = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  Four low2 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5), high2 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  rows[0] = __builtin_shufflevector(low, low2, 0, 1, 4, 5);
  rows[1] = __builtin_shufflevector(low, low2, 2, 3, 6, 7);
  rows[2] = __builtin_shufflevector(high, high2, 0, 1, 4, 5);
  rows[3] = __builtin_shufflevector(high, high2, 2, 3, 6, 7);
}
inline long smaller(long a, long b) {
  return a < b ? a : b;
}
constexpr long ceil_div(long a, long b) {
  return (a + b - 1) / b;
}

// Step 3 of the order in product.h. It is compiled without contraction of multiplications and additions, so that both
// forms give the same bits.
inline void finish(const Product& p, float* c, float sum) {
  float scaled = p.alpha * sum;
  *c = p.beta == 0 ? scaled : scaled + p.beta * *c;
}
inline void finish4(const Product& p, float* c, Four sum) {
  Four scaled = p.alpha * sum;
  store4(c, p.beta == 0 ? scaled : scaled + p.beta * load4(c));
}

template <int N>
struct Count {
  static constexpr int value = N;
};

// The prefetch distance for 16-bit elements, in bytes. It saves a tenth of the time with one row.
constexpr long ahead = 1024;

// The rows or columns that a tile reads. Vector s of row r begins at data + r * row + s * step.
template <typename T>
struct Operand {
  const T* data;
  long row, step;
};

// The place of a tile's result: `valid_rows` x `valid_cols` elements from `c`.
struct Target {
  float* c;
  long valid_rows, valid_cols;
};

// The first n elements, then zeros.
template <class V>
inline typename V::type load_part(const float* p, long n) {
  return V::load_part(p, n);
}
template <class V, typename T>
inline typename V::type load_part(const T* p, long n) {
  T part[V::width] = {};
  for (long i = 0; i < n; i++) {
    part[i] = p[i];
  }
  return V::load(part);
}

// Adds `steps` vectors, and then a partial vector of `tail` elements, to ROWS x COLS sums. The sums start at zero if
// `first`, else at `put_away`. They are written to C if `last`, else to `put_away`.
template <class V, int ROWS, int COLS, typename T>
inline __attribute__((always_inline)) void tile(
    const Product& p, Operand<float> a, Operand<T> b, long steps, long tail, bool first, bool last, float* put_away, Target to) {
  using Vector = typename V::type;
  Vector sum[ROWS][COLS];
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; i++) {
#pragma GCC unroll 8
    for (int j = 0; j < COLS; j++) {
      sum[i][j] = first ? V::zero() : V::load(put_away + (i * COLS + j) * V::width);
    }
  }
  // The operand with fewer vectors (rows or columns) stays in registers.
  auto accumulate = [&](auto load) __attribute__((always_inline)) {
    constexpr int held = ROWS <= COLS ? ROWS : COLS, passing = ROWS <= COLS ? COLS : ROWS;
    auto add = [&](const auto& h, const auto& p) __attribute__((always_inline)) {
      Vector hold[held];
#pragma GCC unroll 8
      for (int i = 0; i < held; i++) {
        hold[i] = load(h.data + i * h.row);
      }
#pragma GCC unroll 8
      for (int j = 0; j < passing; j++) {
        Vector pass = load(p.data + j * p.row);
#pragma GCC unroll 8
        for (int i = 0; i < held; i++) {
          Vector& x = ROWS <= COLS ? sum[i][j] : sum[j][i];
          x = V::fma(hold[i], pass, x);
        }
      }
    };
    if constexpr (ROWS <= COLS) {
      add(a, b);
    } else {
      add(b, a);
    }
  };
  for (long s = 0; s < steps; s++) {
    accumulate([](const auto* x) __attribute__((always_inline)) { return V::load(x); });
    a.data += a.step;
    b.data += b.step;
  }
  if (tail > 0) {
    accumulate([tail](const auto* x) __attribute__((always_inline)) { return load_part<V>(x, tail); });
  }
  if (!last) {
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
#pragma GCC unroll 8
      for (int j = 0; j < COLS; j++) {
        V::store(put_away + (i * COLS + j) * V::width, sum[i][j]);
      }
    }
    return;
  }
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; i++) {
    if (i >= to.valid_rows) {
      return;
    }
#pragma GCC unroll 2
    for (int j = 0; j < COLS; j += 4) {
      auto at = [&](int o) __attribute__((always_inline)) { return sum[i][j + o < COLS ? j + o : COLS - 1]; };
      Four sums = V::sum4(at(0), at(1), at(2), at(3));
      float* c = to.c + i * p.c_row + j * p.c_col;
      long valid = smaller(smaller(4, COLS - j), to.valid_cols - j);
      if (valid == 4 && p.c_col == 1) {
        finish4(p, c, sums);
      } else {
        for (long o = 0; o < valid; o++) {
          finish(p, c + o * p.c_col, sums[o]);
        }
      }
    }
  }
}

// The columns of a tile with `rows` rows. The sums must fit in registers.
template <class V>
constexpr int cols_for(int rows) {
  int most = V::rows * V::cols / rows;
  return most < 8 ? most : 8;
}

// The most rows of a tile of tile_of.
constexpr long max_rows = 6;

// Computes a tile of `rows` rows (1 to max_rows, some of which may be padding) and of cols_for<V>(rows) columns or one
// column.
template <class V, typename T>
void tile_of(
    long rows, const Product& p, Operand<float> a, Operand<T> b, long steps, long tail, bool first, bool last, float* put_away,
    Target to) {
  auto run = [&](auto count) __attribute__((always_inline)) {
    if (to.valid_cols == 1) {
      tile<V, count.value, 1>(p, a, b, steps, tail, first, last, put_away, to);
    } else {
      tile<V, count.value, cols_for<V>(count.value)>(p, a, b, steps, tail, first, last, put_away, to);
    }
  };
  switch (rows) {
    case 1:
      return run(Count<1>());
    case 2:
      return run(Count<2>());
    case 3:
      return run(Count<3>());
    case 4:
      return run(Count<4>());
    case 5:
      return run(Count<5>());
    default:
      return run(Count<6>());
  }
}

// Copies elements [k, k_end) of `rows` rows into one panel of `height` rows; k is a multiple of the width. Vector s of
// row r goes to panel + (s * height + r) * width. Missing rows and elements become zeros.
template <class V>
void pack(
    float* panel, long height, const float* from, long row_stride, long k_stride, long rows, long k, long k_end) {
  long steps = ceil_div(k_end - k, V::width);
  long full = (k_end - k) / V::width;
  rows = smaller(rows, height);
  auto slot = [&](long s, long r) { return panel + (s * height + r) * V::width; };
  auto one_by_one = [&](long s, long r) {
    for (long l = 0; l < V::width; l++) {
      long at = k + s * V::width + l;
      slot(s, r)[l] = at < k_end ? from[r * row_stride + at * k_stride] : 0;
    }
  };
  for (long r = rows; r < height; r++) {
    for (long s = 0; s < steps; s++) {
      V::store(slot(s, r), V::zero());
    }
  }
  if (k_stride == 1) {
    for (long r = 0; r < rows; r++) {
      const float* row = from + r * row_stride + k;
      for (long s = 0; s < full; s++) {
        V::store(slot(s, r), V::load(row + s * V::width));
      }
      if (full < steps) {
        V::store(slot(full, r), V::load_part(row + full * V::width, k_end - k - full * V::width));
      }
    }
    return;
  }
  // Blocks of 4 x 4 are transposed in registers if rows are adjacent. The last block may overlap the one before it.
  bool turn = row_stride == 1 && rows >= 4;
  for (long s = 0; s < steps; s++) {
    if (!turn || s == full) {
      for (long r = 0; r < rows; r++) {
        one_by_one(s, r);
      }
      continue;
    }
    for (long l = 0; l < V::width; l += 4) {
      const float* at = from + (k + s * V::width + l) * k_stride;
      for (long past = 4; past < rows + 4; past += 4) {
        long r = smaller(past, rows) - 4;
        Four turned[4] = {
            load4(at + r), load4(at + r + k_stride), load4(at + r + 2 * k_stride), load4(at + r + 3 * k_stride)};
        turn4(turned);
        for (int i = 0; i < 4; i++) {
          store4(slot(s, r + i) + l, turned[i]);
        }
      }
    }
  }
}

} // namespace
} // namespace mlxrs::sgemm
