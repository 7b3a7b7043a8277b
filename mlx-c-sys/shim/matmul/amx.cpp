#include "amx.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include <immintrin.h>

#include "floats.h"
#include "turn.h"

namespace mlxrs::matmul {
namespace {

#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE

// A panel of weights fills most of the first cache.
constexpr long panel_rows = 64, panel_k = 256;
// Rows of x that go by a panel: their part of k has a quarter of the second cache.
constexpr long block_m = 512;

struct alignas(64) Tile {
  float sums[16][16];
};

// Where things are in the scratch memory of a task.
struct Scratch {
  uint16_t* panel;
  float *scales, *biases;
  Tile* out;
  Tile* sums;

  static long floats(const Weights& w) {
    return (panel_rows * w.groups() + 15) / 16 * 16;
  }
  // Sums that wait for the next panel: none where they stay in registers.
  static long tiles(const Product& p, const Weights& w, long rows) {
    long blocks = ((p.m < block_m ? p.m : block_m) + 15) / 16;
    long panels = p.m <= Amx::some ? 1 : (rows + panel_rows - 1) / panel_rows;
    return blocks <= 4 || w.k <= panel_k ? 0 : panels * blocks * 4;
  }
  static long size(const Product& p, const Weights& w, long rows) {
    return panel_rows * panel_k * 2 + 2 * floats(w) * 4 + (4 + tiles(p, w, rows)) * static_cast<long>(sizeof(Tile));
  }
  Scratch(const Weights& w, void* memory) {
    panel = static_cast<uint16_t*>(memory);
    scales = reinterpret_cast<float*>(panel + panel_rows * panel_k);
    biases = scales + floats(w);
    out = reinterpret_cast<Tile*>(biases + floats(w));
    sums = out + 4;
  }

  // The panel for rows [row, row + rows), with their scales for [k, k_end).
  Panel prepare(const Weights& w, const Expander& e, long row, long rows, long k, long k_end) const {
    Panel panel{w, row, rows, 0, 0, scales, biases, nullptr};
    if (w.group > 0) {
      panel.group = k / w.group;
      panel.groups = (k_end + w.group - 1) / w.group - panel.group;
      // All in one go where they lie side by side.
      bool all = panel.groups == w.groups();
      long times = all ? 1 : rows, n = all ? rows * panel.groups : panel.groups;
      for (long r = 0; r < times; r++) {
        long at = (row + r) * w.groups() + panel.group;
        e.scales(w.coding, w.scale_type, w.scales, at, n, scales + r * n);
        if (w.biases != nullptr) {
          e.scales(w.coding, w.scale_type, w.biases, at, n, biases + r * n);
        }
      }
    }
    return panel;
  }
};

INLINE long smaller(long a, long b) {
  return a < b ? a : b;
}

// How many rows of x a tile has room for. Up to 8 take half of the first cache, where the weights pass through too.
INLINE long columns_of(long m) {
  return m <= 8 ? 8 : 16;
}

struct Configuration {
  explicit Configuration(long columns) {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } tiles;
    if (columns < 16) {
      // The sum and x of tiles<1, ..>.
      tiles.row_bytes[0] = tiles.row_bytes[5] = static_cast<uint16_t>(4 * columns);
    }
    _tile_loadconfig(&tiles);
  }
  ~Configuration() {
    _tile_release();
  }
};

// The order in which x goes with the weights, see Expander: which of 64 elements go to the first 32 and to the others.
struct Order {
  int dealt;
  __m512i halves[2];

  explicit Order(int dealt) : dealt(dealt) {
    alignas(64) uint16_t from[64];
    for (int i = 0; i < 64; i++) {
      from[i % dealt * (64 / dealt) + i / dealt] = static_cast<uint16_t>(i);
    }
    halves[0] = _mm512_load_si512(from);
    halves[1] = _mm512_load_si512(from + 32);
  }

  // Step s of a row of x: 32 elements; zeros beyond the end.
  INLINE __m512i operator()(const uint16_t* x, long s, long end) const {
    auto load = [&](long at) ALWAYS_INLINE {
      long n = end - at;
      return _mm512_maskz_loadu_epi16(n >= 32 ? 0xffffffff : n > 0 ? (1u << n) - 1 : 0, x + at);
    };
    if (dealt == 1) {
      return load(32 * s);
    }
    long from = s / 2 * 64;
    return _mm512_permutex2var_epi16(load(from), halves[s % 2], load(from + 32));
  }
};

void pack(const Product& p, long k, int dealt, long block, uint16_t* packed) {
  const Order order(dealt);
  long steps = Amx::steps(k, dealt), rows = smaller(16, p.m - 16 * block), columns = columns_of(p.m);
  uint16_t* to = packed + block * steps * 512;
  for (long s = 0; s < steps; s++, to += 32 * columns) {
    __m512i r[16];
    for (long i = 0; i < 16; i++) {
      r[i] = i < rows ? order(static_cast<const uint16_t*>(p.x[16 * block + i]), s, k) : _mm512_setzero_si512();
    }
    turn(r);
    for (long i = 0; i < 16; i++) {
      if (columns == 8) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 16 * i), _mm512_castsi512_si256(r[i]));
      } else {
        _mm512_store_si512(to + 32 * i, r[i]);
      }
    }
  }
}

// Rounds a tile (16 rows of weights x 16 of x) to bf16 and writes it: y[row of x][column + row of weights].
void write(const Product& p, const Tile& tile, long first_row, long column, long columns) {
  long rows = smaller(16, p.m - first_row);
  auto to = [&](long i) ALWAYS_INLINE { return static_cast<uint16_t*>(p.y[first_row + i]) + column; };
  __mmask16 there = static_cast<__mmask16>((1u << columns) - 1);
  if (rows <= 3) {
    const __m512i at = _mm512_mullo_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(16));
    for (long i = 0; i < rows; i++) {
      __m256bh half = _mm512_cvtneps_pbh(_mm512_i32gather_ps(at, &tile.sums[0][i], 4));
      _mm256_mask_storeu_epi16(to(i), there, reinterpret_cast<__m256i&>(half));
    }
    return;
  }
  __m512i r[16];
  for (int i = 0; i < 16; i++) {
    r[i] = _mm512_load_si512(tile.sums[i]);
  }
  turn(r);
  for (long i = 0; i < rows; i++) {
    __m256bh half = _mm512_cvtneps_pbh(_mm512_castsi512_ps(r[i]));
    _mm256_mask_storeu_epi16(to(i), there, reinterpret_cast<__m256i&>(half));
  }
}

// Adds to the sums 0 to 3 the products of 4 tiles of weights, whose rows lie `row` bytes apart, and one of x. (Of 4 tiles
// by 1, 2 by 2 and 1 by 4, which need 5, 4 and 5 loads, the second took a quarter longer than the others.)
INLINE void tiles(const uint16_t* w, long row, const uint16_t* x, long steps) {
  const uint16_t *w0 = w, *w1 = w0 + 8 * row, *w2 = w1 + 8 * row, *w3 = w2 + 8 * row;
  for (long s = 0; s < steps; s++, x += 512) {
    _tile_loadd(4, x, 64);
    _tile_loadd(5, w0 + 32 * s, row);
    _tile_dpbf16ps(0, 5, 4);
    _tile_loadd(6, w1 + 32 * s, row);
    _tile_dpbf16ps(1, 6, 4);
    _tile_loadd(7, w2 + 32 * s, row);
    _tile_dpbf16ps(2, 7, 4);
    _tile_loadd(5, w3 + 32 * s, row);
    _tile_dpbf16ps(3, 5, 4);
  }
}

// Adds to the sums 0 to X - 1 the products of one tile of weights and X of x, which lie `block` elements apart and have room
// for W rows of x.
template <int X, int W, bool AHEAD>
INLINE void tiles(const uint16_t* w, long row, const uint16_t* x, long block, long steps) {
  for (long s = 0; s < steps; s++, w += 32, x += 32 * W) {
    _tile_loadd(4, w, row);
    _tile_loadd(5, x, 4 * W);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (X > 1) {
      _tile_loadd(6, x + block, 64);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (X > 2) {
      _tile_loadd(7, x + 2 * block, 64);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (X > 3) {
      _tile_loadd(5, x + 3 * block, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
    if constexpr (AHEAD) {
      // Rows that lie far apart are not foreseen by the machine.
      const char* next = reinterpret_cast<const char*>(w) + 512;
      for (long i = 0; i < 16; i++) {
        _mm_prefetch(next + i * row, _MM_HINT_T0);
      }
    }
  }
}

INLINE void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
INLINE void load_sums(const Tile* t) {
  _tile_loadd(0, t, 64);
  _tile_loadd(1, t + 1, 64);
  _tile_loadd(2, t + 2, 64);
  _tile_loadd(3, t + 3, 64);
}
INLINE void store_sums(Tile* t) {
  _tile_stored(0, t, 64);
  _tile_stored(1, t + 1, 64);
  _tile_stored(2, t + 2, 64);
  _tile_stored(3, t + 3, 64);
}

// Makes `height` rows of a panel from those that there are, [k, k_end), with zeros for the others and behind the end.
void fill(const Expander& e, const Panel& p, long k, long k_end, uint16_t* to, long ld, long height) {
  if (p.rows < height || (k_end - k) % 32 != 0) {
    std::memset(to, 0, height * ld * sizeof(uint16_t));
  }
  e.to_bf16(p, k, k_end, to, ld);
}

// At most X blocks of 16 rows of x, for which a tile's rows of weights go by at a time: nearly in the order of memory, and
// all sums stay in registers.
template <int X, int W = 16>
void few_columns(
    const Product& p, const Weights& w, const Expander& e, const uint16_t* x, long row, long row_end, Scratch& s) {
  int dealt = e.dealt(w);
  long block = Amx::steps(w.k, dealt) * 512;
  for (; row < row_end; row += 16) {
    long rows = smaller(16, row_end - row);
    zero_sums();
    if (w.coding == Coding::bf16 && w.k % 32 == 0 && rows == 16) {
      const uint16_t* at = static_cast<const uint16_t*>(w.data) + row * w.k;
      tiles<X, W, true>(at, w.row_bytes(), x, block, w.k / 32);
    } else {
      Panel panel = s.prepare(w, e, row, rows, 0, w.k);
      for (long k = 0; k < w.k; k += panel_k) {
        long k_end = smaller(w.k, k + panel_k);
        // The next rows in the order of memory, while these are read across it.
        long next = row + 16 < row_end ? row + 16 : row;
        panel.next = static_cast<const uint8_t*>(w.data) + (next * w.k + rows * k) * w.bits / 8;
        fill(e, panel, k, k_end, s.panel, panel_k, 16);
        tiles<X, W, false>(s.panel, panel_k * 2, x + k * W, block, Amx::steps(k_end - k, dealt));
      }
    }
    store_sums(s.out);
    for (long i = 0; 16 * i < p.m; i++) {
      write(p, s.out[i], 16 * i, row, rows);
    }
  }
}

// Has lines [begin, end) of a panel's rows brought into the second cache, its part of them that `turn` of `turns` names.
void fetch(const Weights& w, long row, long k, long turn, long turns) {
  long bytes = smaller(panel_k, w.k - k) * w.bits / 8;
  for (long r = row + panel_rows * turn / turns; r < smaller(w.n, row + panel_rows * (turn + 1) / turns); r++) {
    const char* at = static_cast<const char*>(w.data) + r * w.row_bytes() + k * w.bits / 8;
    for (long b = 0; b < bytes; b += 64) {
      _mm_prefetch(at + b, _MM_HINT_T1);
    }
  }
}

// The products of panel [row, row + 64) x [k, k_end) with rows [m0, m1) of x, added to `sums` or, at the end of k, written.
void multiply_panel(
    const Product& p, const Weights& w, const Expander& e, const uint16_t* x, Panel panel, long k, long m0, long m1,
    Tile* sums, Scratch& s, bool fetches) {
  long x_block = Amx::steps(w.k, e.dealt(w)) * 512;
  long k_end = smaller(w.k, k + panel_k), steps = Amx::steps(k_end - k, e.dealt(w)), blocks = (m1 - m0 + 15) / 16;
  fill(e, panel, k, k_end, s.panel, panel_k, panel_rows);
  for (long b = 0; b < blocks; b++, sums += 4) {
    if (k == 0) {
      zero_sums();
    } else {
      load_sums(sums);
    }
    if (fetches) {
      fetch(w, panel.row + panel_rows, k, b, blocks);
    }
    tiles(s.panel, panel_k * 2, x + (m0 / 16 + b) * x_block + k / 32 * 512, steps);
    if (k_end < w.k) {
      store_sums(sums);
      continue;
    }
    store_sums(s.out);
    for (long j = 0; 16 * j < panel.rows; j++) {
      write(p, s.out[j], m0 + 16 * b, panel.row + 16 * j, smaller(16, panel.rows - 16 * j));
    }
  }
}

// Until x fills a good part of the second cache, weights are read in the order of memory. Then a part of x stays there
// while all weights go by.
void many_columns(
    const Product& p, const Weights& w, const Expander& e, const uint16_t* x, long first, long row_end, Scratch& s) {
  if (p.m <= Amx::some) {
    for (long row = first; row < row_end; row += panel_rows) {
      long rows = smaller(panel_rows, row_end - row), next = row + panel_rows < row_end ? row + panel_rows : row;
      Panel panel = s.prepare(w, e, row, rows, 0, w.k);
      for (long k = 0; k < w.k; k += panel_k) {
        panel.next = static_cast<const uint8_t*>(w.data) + (next * w.k + rows * k) * w.bits / 8;
        multiply_panel(p, w, e, x, panel, k, 0, p.m, s.sums, s, false);
      }
    }
    return;
  }
  for (long m0 = 0; m0 < p.m; m0 += block_m) {
    long m1 = smaller(p.m, m0 + block_m);
    for (long k = 0; k < w.k; k += panel_k) {
      Tile* sums = s.sums;
      for (long row = first; row < row_end; row += panel_rows, sums += (m1 - m0 + 15) / 16 * 4) {
        long rows = smaller(panel_rows, row_end - row);
        Panel panel = s.prepare(w, e, row, rows, k, smaller(w.k, k + panel_k));
        panel.next = static_cast<const uint8_t*>(w.data) + row * w.row_bytes();
        multiply_panel(p, w, e, x, panel, k, m0, m1, w.k > panel_k ? sums : s.out, s, true);
      }
    }
  }
}

void rows(
    const Product& p, const Weights& w, const Expander& e, const uint16_t* packed, long row, long row_end,
    void* scratch) {
  Configuration configuration(columns_of(p.m));
  Scratch s(w, scratch);
  if (p.m <= 8) {
    few_columns<1, 8>(p, w, e, packed, row, row_end, s);
  } else if (p.m <= 16) {
    few_columns<1>(p, w, e, packed, row, row_end, s);
  } else if (p.m <= 32) {
    few_columns<2>(p, w, e, packed, row, row_end, s);
  } else if (p.m <= 48) {
    few_columns<3>(p, w, e, packed, row, row_end, s);
  } else if (p.m <= 64) {
    few_columns<4>(p, w, e, packed, row, row_end, s);
  } else {
    many_columns(p, w, e, packed, row, row_end, s);
  }
}

constexpr Amx kernels{pack, Scratch::size, rows};

} // namespace

const Amx* amx() {
  return &kernels;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::Amx* mlxrs::matmul::amx() {
  return nullptr;
}

#endif
