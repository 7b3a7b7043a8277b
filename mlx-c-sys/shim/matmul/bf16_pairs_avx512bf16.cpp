// The kernels of bf16_pairs.h with AVX-512 BF16.
#include "bf16_pairs.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

#include "convert.h"
#include "transpose_avx512.h"

namespace mlxrs::matmul {
namespace {

#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE

INLINE int pair_at(const char* from) {
  int both;
  std::memcpy(&both, from, sizeof both);
  return both;
}

struct Sixteen {
  using Sums = __m512;
  using Of = __m512i;
  static constexpr long lanes = 16;

  static INLINE Sums load(const float* from) {
    return _mm512_loadu_ps(from);
  }
  static INLINE void store(float* to, Sums x) {
    _mm512_storeu_ps(to, x);
  }
  static INLINE Sums zero() {
    return _mm512_setzero_ps();
  }
  static INLINE Of of(const char* from) {
    return _mm512_loadu_si512(from);
  }
  static INLINE Of all(const char* from) {
    return _mm512_set1_epi32(pair_at(from));
  }
  static INLINE Sums add(Sums sums, Of x, Of w) {
    return _mm512_dpbf16_ps(sums, (__m512bh)x, (__m512bh)w);
  }
};

struct Eight {
  using Sums = __m256;
  using Of = __m256i;
  static constexpr long lanes = 8;

  static INLINE Sums load(const float* from) {
    return _mm256_loadu_ps(from);
  }
  static INLINE void store(float* to, Sums x) {
    _mm256_storeu_ps(to, x);
  }
  static INLINE Sums zero() {
    return _mm256_setzero_ps();
  }
  static INLINE Of of(const char* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static INLINE Of all(const char* from) {
    return _mm256_set1_epi32(pair_at(from));
  }
  static INLINE Sums add(Sums sums, Of x, Of w) {
    return _mm256_dpbf16_ps(sums, (__m256bh)x, (__m256bh)w);
  }
};

// The rows whose addresses are computed from one pointer.
constexpr int near = 3;

// Prefetch distances in bytes. The distance is smaller for transposed weights, because more rows are read at once.
constexpr long ahead = 1024, ahead_of_turned = 512;

// The rows of weights in a register tile.
constexpr int side = Bf16Pairs::unit;

// Adds the products of a tile's rows of weights with X blocks of x to the sums at `to`. Prefetches the memory after
// each row if BEHIND, else `fetch` and what follows it.
template <class V, int X, bool BEHIND>
INLINE void tile(const PairTiles& t, const char* w, const char* x, float* to, const char* fetch) {
  typename V::Sums sums[side][X];
  auto each = [&](auto body) ALWAYS_INLINE {
#pragma GCC unroll 12
    for (int q = 0; q < side; q++) {
#pragma GCC unroll 2
      for (int v = 0; v < X; v++) {
        body(sums[q][v], to + q * t.distance + v * V::lanes);
      }
    }
  };
  if (t.first) {
    each([](auto& sum, float*) ALWAYS_INLINE { sum = V::zero(); });
  } else {
    each([](auto& sum, float* at) ALWAYS_INLINE { sum = V::load(at); });
  }
  const long row = t.w_row, fetch_step = t.fetch_step;
  const char *rows[side / near], *xs[X];
#pragma GCC unroll 4
  for (int i = 0; i < side / near; i++) {
    rows[i] = w + i * near * row;
  }
#pragma GCC unroll 2
  for (int v = 0; v < X; v++) {
    xs[v] = x + v * t.x_block;
  }
  auto add = [&](int pair) ALWAYS_INLINE {
    typename V::Of of_x[X];
#pragma GCC unroll 2
    for (int v = 0; v < X; v++) {
      of_x[v] = V::of(xs[v] + pair * V::lanes * 4);
    }
#pragma GCC unroll 12
    for (int q = 0; q < side; q++) {
      auto of_w = V::all(rows[q / near] + q % near * row + 4 * pair);
#pragma GCC unroll 2
      for (int v = 0; v < X; v++) {
        sums[q][v] = V::add(sums[q][v], of_x[v], of_w);
        // Without this, GCC moves each sum to another register for every product.
        asm("" : "+v"(sums[q][v]));
      }
    }
  };
  auto forward = [&](long pairs) ALWAYS_INLINE {
#pragma GCC unroll 4
    for (auto& at : rows) {
      at += 4 * pairs;
      // Without this, GCC computes all addresses from one.
      asm("" : "+r"(at));
    }
#pragma GCC unroll 2
    for (auto& at : xs) {
      at += 4 * V::lanes * pairs;
    }
  };
  // Four pairs. The three rows of pointer i are prefetched meanwhile, so that 16 pairs prefetch each row once.
  auto four = [&](int i) ALWAYS_INLINE {
#pragma GCC unroll 3
    for (int j = 0; j < near; j++, fetch += fetch_step) {
      _mm_prefetch(BEHIND ? rows[i] + j * row + ahead : fetch, _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; pair++) {
      add(pair);
    }
    forward(4);
  };
  long left = t.pairs;
  for (; left >= 16; left -= 16) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      four(i);
    }
  }
  for (; left > 0; left--) {
    add(0);
    forward(1);
  }
  each([](auto& sum, float* at) ALWAYS_INLINE { V::store(at, sum); });
}

template <class V, int X, bool BEHIND>
INLINE const char* tiles(const PairTiles& t, long block, const char* fetch) {
  for (long row = 0; row < t.rows; row += side) {
    tile<V, X, BEHIND>(
        t, static_cast<const char*>(t.w) + row * t.w_row, static_cast<const char*>(t.x) + block * t.x_block,
        t.sums + row * t.distance + block * V::lanes, fetch);
    fetch += t.pairs / 16 * side * t.fetch_step;
  }
  return fetch;
}

template <bool BEHIND>
void multiply_by(const PairTiles& t) {
  if (Bf16Pairs::lanes(t.m) == 8) {
    tiles<Eight, 1, BEHIND>(t, 0, t.fetch);
    return;
  }
  const long blocks = (t.m + 15) / 16;
  const char* fetch = t.fetch;
  long block = 0;
  for (; block + 2 <= blocks; block += 2) {
    fetch = tiles<Sixteen, 2, BEHIND>(t, block, fetch);
  }
  if (block < blocks) {
    tiles<Sixteen, 1, BEHIND>(t, block, fetch);
  }
}

void multiply(const PairTiles& t) {
  t.fetch == nullptr ? multiply_by<true>(t) : multiply_by<false>(t);
}

// Computes y for M rows of x, with weights transposed in registers.
template <int M>
void few_rows(const PairRows& r) {
  auto* w = static_cast<const char*>(r.w);
  __m512 sums[M];
  const char* x[M];
  for (int i = 0; i < M; i++) {
    sums[i] = _mm512_setzero_ps();
    x[i] = static_cast<const char*>(r.x[i]);
  }
  for (long pair = 0; pair < r.pairs; pair += 16, w += 64) {
    const long left = r.pairs - pair;
    __m512i turned[16];
    if (left >= 16) {
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) {
        _mm_prefetch(w + i * r.w_row + ahead_of_turned, _MM_HINT_T0);
        turned[i] = _mm512_loadu_si512(w + i * r.w_row);
      }
    } else {
      const auto there = static_cast<__mmask16>((1u << left) - 1);
      for (int i = 0; i < 16; i++) {
        turned[i] = _mm512_maskz_loadu_epi32(there, w + i * r.w_row);
      }
    }
    transpose(turned);
    auto add = [&](int k) ALWAYS_INLINE {
#pragma GCC unroll 8
      for (int i = 0; i < M; i++) {
        sums[i] = Sixteen::add(sums[i], turned[k], Sixteen::all(x[i] + 4 * (pair + k)));
      }
    };
    if (left >= 16) {
#pragma GCC unroll 16
      for (int k = 0; k < 16; k++) {
        add(k);
      }
    } else {
      for (int k = 0; k < left; k++) {
        add(k);
      }
    }
  }
  for (int i = 0; i < M; i++) {
    _mm512_storeu_ps(r.sums + 16 * i, sums[i]);
  }
}

void multiply_few(const PairRows& r) {
  constexpr void (*kernels[Bf16Pairs::few])(const PairRows&) = {few_rows<1>, few_rows<2>, few_rows<3>, few_rows<4>};
  kernels[r.m - 1](r);
}

void pack(const void* const* x, long rows, long k, int dealt, long lanes, long pairs, void* to) {
  auto* out = static_cast<uint32_t*>(to);
  alignas(64) uint32_t part[16][16] = {};
  for (long first = 0; first < pairs; first += 16) {
    const long here = pairs - first < 16 ? pairs - first : 16;
    for (long r = 0; r < rows; r++) {
      auto* from = static_cast<const uint16_t*>(x[r]);
      auto* at = reinterpret_cast<uint16_t*>(part[r]);
      if (dealt == 1 && 2 * (first + 16) <= k) {
        std::memcpy(at, from + 2 * first, sizeof part[r]);
        continue;
      }
      for (long i = 0; i < 2 * here; i++) {
        // The element of x that goes to place `place`, in the element order of the weights.
        const long place = 2 * first + i, of_64 = place % 64, part_of = 64 / dealt;
        const long element = place - of_64 + of_64 % part_of * dealt + of_64 / part_of;
        at[i] = element < k ? from[element] : 0;
      }
    }
    __m512i turned[16];
    for (int r = 0; r < 16; r++) {
      turned[r] = _mm512_load_si512(part[r]);
    }
    transpose(turned);
    for (long i = 0; i < here; i++, out += lanes) {
      lanes == 16 ? _mm512_storeu_si512(out, turned[i])
                  : _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_castsi512_si256(turned[i]));
    }
  }
}

void write(const float* sums, long distance, long m, long n, long row, void* const* y) {
  for (long i = 0; i < m; i += 16) {
    const __mmask16 there = static_cast<__mmask16>(m - i < 16 ? (1u << (m - i)) - 1 : 0xffff);
    for (long q = 0; q < n; q += 16) {
      __m512i turned[16];
      for (long r = 0; r < 16; r++) {
        turned[r] = _mm512_maskz_loadu_epi32(there, sums + (q + r) * distance + i);
      }
      transpose(turned);
      const long rows = n - q < 16 ? n - q : 16;
      for (long r = 0; r < 16 && r < m - i; r++) {
        alignas(64) float out[16];
        _mm512_store_si512(out, turned[r]);
        to_bf16(out, rows, static_cast<uint16_t*>(y[i + r]) + row + q);
      }
    }
  }
}

} // namespace

const Bf16Pairs* bf16_pairs_avx512bf16() {
  static constexpr Bf16Pairs kernels{pack, multiply, multiply_few, write};
  return &kernels;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::Bf16Pairs* mlxrs::matmul::bf16_pairs_avx512bf16() {
  return nullptr;
}

#endif
