// The kernels of bf16_tiles.h with AMX.
#include "bf16_tiles.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include <cstring>

#include "bf16_tiles_amx.h"
#include "convert.h"

namespace mlxrs::matmul {
namespace {

// With up to `few` rows of x, weights are processed in panels of 16 rows. The elements [k, k + panel_k) of a panel stay
// in L1, and sums stay in registers.
constexpr long few = 64, panel_rows = 16, panel_k = 256;
// With more rows of x, weights are processed in blocks of two tiles, against three tiles of x at a time. The elements
// [k, k + block_k) of a block stay in L1; x is loaded without displacing them.
constexpr long block_rows = 32, block_k = 512;

// The element order of the weights (see Dequantizer), applied to x: which of 64 elements are in the first 32, and which
// in the second.
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

  // Step s of a row of x: 32 elements. Elements from `end` on are zeros.
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
  long steps = Bf16Tiles::steps(k, dealt), rows = smaller(16, p.m - 16 * block), columns = columns_of(p.m);
  uint16_t* to = packed + block * steps * 512;
  for (long s = 0; s < steps; s++, to += 32 * columns) {
    __m512i r[16];
    for (long i = 0; i < 16; i++) {
      r[i] = i < rows ? order(static_cast<const uint16_t*>(p.x[16 * block + i]), s, k) : _mm512_setzero_si512();
    }
    transpose(r);
    for (long i = 0; i < 16; i++) {
      if (columns == 8) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 16 * i), _mm512_castsi512_si256(r[i]));
      } else {
        _mm512_store_si512(to + 32 * i, r[i]);
      }
    }
  }
}

// The loop over the weights of a task with many rows of x. The outer loop takes pieces of k, whose x stays in L2. The
// inner loop takes parts of a piece, whose block of weights stays in L1. Sums are stored between parts.
struct Plan {
  long m, k, steps, piece_k, part_k;

  Plan(const Product& p, const Weights& w, int dealt)
      : m(p.m), k(w.k), steps(Bf16Tiles::steps(w.k, dealt)), piece_k(Bf16Tiles::piece(p.m, w.k)), part_k(panel_k) {
    if (m > few) {
      part_k = Bf16Tiles::part_of(piece_k, block_k, 128);
    }
  }
  // The tiles of sums for a block of weights.
  long tiles() const {
    return (m + 15) / 16 * 2;
  }
  // Whether the sums of all blocks of weights are stored at once, because k has several pieces.
  bool all_wait() const {
    return piece_k < k;
  }
};

// The parts of a task's scratch memory.
struct Scratch {
  // Weights, converted to bf16.
  uint16_t* panel;
  float *scales, *biases;
  // `out`: sums that are about to be written to y. `sums`: sums that continue at the next part of k.
  static constexpr long out_tiles = 16;
  Tile *out, *sums;

  // Rows of the panel are an odd number of cache lines apart. So the rows of a tile, and rows that are written one
  // after the other, fall into different cache sets.
  static long ld(const Plan& plan) {
    return (plan.part_k + 63) / 64 * 64 + 32;
  }
  static long elements(const Plan& plan) {
    return (plan.m > few ? block_rows : panel_rows) * ld(plan);
  }
  static long floats(const Weights& w) {
    return (block_rows * w.groups() + 15) / 16 * 16;
  }
  static long size(const Product& p, const Weights& w, const Dequantizer& e, long rows) {
    Plan plan(p, w, e.dealt(w));
    long blocks = (rows + block_rows - 1) / block_rows;
    long tiles = out_tiles + (plan.m > few ? (plan.all_wait() ? blocks : 1) * plan.tiles() : 0);
    return (2 * elements(plan) + 63) / 64 * 64 + 8 * floats(w) + tiles * static_cast<long>(sizeof(Tile));
  }
  Scratch(const Plan& plan, const Weights& w, void* memory) {
    panel = static_cast<uint16_t*>(memory);
    scales = reinterpret_cast<float*>(panel + (elements(plan) + 31) / 32 * 32);
    biases = scales + floats(w);
    out = reinterpret_cast<Tile*>(biases + floats(w));
    sums = out + out_tiles;
  }

  // A panel of rows [row, row + rows), with their scales and biases for [k, k_end).
  Panel prepare(const Weights& w, const Dequantizer& e, long row, long rows, long k, long k_end) const {
    Panel panel{w, row, rows, 0, 0, scales, biases, nullptr};
    if (w.group > 0) {
      panel.group = k / w.group;
      panel.groups = (k_end + w.group - 1) / w.group - panel.group;
      // One call where the groups of all rows are contiguous.
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

// Writes elements [k, k_end) of a panel with `height` rows. Missing rows and elements become zeros.
void fill(const Dequantizer& e, const Panel& p, long k, long k_end, long height, uint16_t* to, long ld) {
  if (p.rows < height || (k_end - k) % 32 != 0) {
    std::memset(to, 0, height * ld * sizeof(uint16_t));
  }
  e.to_bf16(p, k, k_end, to, ld);
}

// Multiplies dense rows [row, row_end) with one block of x, in place. The rows of a tile are far apart, because 16 long
// ranges of memory are read faster than adjacent rows. After 16 tiles, each range has 16 adjacent sums to write.
// Returns the first row that remains.
template <int W>
long dense_stretches(const Product& p, const Weights& w, const uint16_t* x, long row, long row_end, Tile* sums) {
  const long distance = rows_apart(row_end - row);
  for (long t = 0; t < distance; t++) {
    Tile* sum = sums + t % 16;
    const auto* at = static_cast<const uint16_t*>(w.data) + (row + t) * w.k;
    zero_sums<1>();
    tiles<1, W, Ahead::stretches>(at, distance * w.row_bytes(), x, 0, w.k / 32, sum);
    store_sums<1>(sum);
    if (t % 16 == 15 || t + 1 == distance) {
      for (long i = 0; i < 16; i++) {
        write(p, sums->sums[i], 256, 0, row + i * distance + t - t % 16, t % 16 + 1);
      }
    }
  }
  return row + 16 * distance;
}

// Multiplies with at most X blocks of 16 rows of x. A tile of weights is read once, almost in memory order, and all
// sums stay in registers.
template <int X, int W = 16>
void few_columns(
    const Product& p, const Plan& plan, const Weights& w, const Dequantizer& e, const uint16_t* x, long row, long row_end,
    const Scratch& s) {
  int dealt = e.dealt(w);
  long block = plan.steps * 512, ld = Scratch::ld(plan);
  const bool is_dense = w.coding == Coding::bf16 && w.k % 32 == 0;
  if (X == 1 && is_dense) {
    row = dense_stretches<W>(p, w, x, row, row_end, s.out);
  }
  for (; row < row_end; row += 16) {
    long rows = smaller(16, row_end - row);
    zero_sums<X>();
    if (is_dense && rows == 16) {
      const uint16_t* at = static_cast<const uint16_t*>(w.data) + row * w.k;
      tiles<X, W, Ahead::side_by_side>(at, w.row_bytes(), x, block, w.k / 32, s.out);
    } else {
      Panel panel = s.prepare(w, e, row, rows, 0, w.k);
      for (long k = 0; k < w.k; k += panel_k) {
        long k_end = smaller(w.k, k + panel_k);
        // Prefetches the next rows in memory order.
        long next = row + 16 < row_end ? row + 16 : row;
        panel.next = static_cast<const uint8_t*>(w.data) + (next * w.k + rows * k) * w.bits / 8;
        fill(e, panel, k, k_end, panel_rows, s.panel, ld);
        tiles<X, W, Ahead::no>(s.panel, 2 * ld, x + k * W, block, Bf16Tiles::steps(k_end - k, dealt), s.out);
        _tile_stored(5, s.out, 64);
      }
    }
    store_sums<X>(s.out);
    for (long i = 0; 16 * i < p.m; i++) {
      write(p, s.out[i], 16 * i, row, rows);
    }
  }
}

// A part of a block of weights: rows [row, row + rows), elements [k, k_end).
struct Piece {
  long row, rows, k, k_end;
};

// Multiplies a piece with 16 X rows of x, from row m on.
template <int X>
void multiply_block(const Product& p, const Plan& plan, const Piece& piece, const uint16_t* x, long m, Tile* sums, const Scratch& s) {
  if (piece.k == 0) {
    zero_sums<2 * X>();
  } else {
    load_sums<2 * X>(sums);
  }
  long steps = (piece.k_end == plan.k ? plan.steps : piece.k_end / 32) - piece.k / 32;
  multiply<X>(s.panel, Scratch::ld(plan), x + m / 16 * plan.steps * 512 + piece.k * 16, plan.steps * 512, steps, s.out);
  if (piece.k_end < plan.k) {
    store_sums<2 * X>(sums);
    return;
  }
  store_sums<2 * X>(s.out);
  for (long i = 0; i < X; i++) {
    if (piece.rows == block_rows) {
      write_pair(p, s.out + 2 * i, m + 16 * i, piece.row);
      continue;
    }
    for (long right = 0; right < piece.rows; right += 16) {
      write(p, s.out[2 * i + right / 16], m + 16 * i, piece.row + right, smaller(16, piece.rows - right));
    }
  }
}

void many_columns(
    const Product& p, const Plan& plan, const Weights& w, const Dequantizer& e, const uint16_t* x, long first, long row_end,
    const Scratch& s) {
  for (long k = 0; k < w.k; k += plan.piece_k) {
    const long k_end = smaller(w.k, k + plan.piece_k);
    Tile* sums = s.sums;
    for (long row = first; row < row_end; row += block_rows) {
      const long rows = smaller(block_rows, row_end - row), next = row + block_rows < row_end ? row + block_rows : first;
      Panel panel = s.prepare(w, e, row, rows, k, k_end);
      for (Piece piece{row, rows, k, k}; piece.k < k_end; piece.k = piece.k_end) {
        piece.k_end = smaller(k_end, piece.k + plan.part_k);
        panel.next = static_cast<const uint8_t*>(w.data) + (next * w.k + rows * piece.k) * w.bits / 8;
        fill(e, panel, piece.k, piece.k_end, block_rows, s.panel, Scratch::ld(plan));
        for (long m = 0, tiles; m < p.m; m += 16 * tiles) {
          const long left = (p.m - m + 15) / 16;
          // Two times two tiles are faster than three and one.
          tiles = left == 4 ? 2 : smaller(left, 3);
          const auto multiply = tiles == 3 ? multiply_block<3> : tiles == 2 ? multiply_block<2> : multiply_block<1>;
          multiply(p, plan, piece, x, m, sums + m / 16 * 2, s);
        }
      }
      sums += plan.all_wait() ? plan.tiles() : 0;
    }
  }
  // y may have been written with non-temporal stores.
  _mm_sfence();
}

void rows(
    const Product& p, const Weights& w, const Dequantizer& e, const uint16_t* packed, long row, long row_end,
    void* scratch) {
  Configuration configuration(columns_of(p.m));
  const Plan plan(p, w, e.dealt(w));
  const Scratch s(plan, w, scratch);
  if (p.m <= 8) {
    few_columns<1, 8>(p, plan, w, e, packed, row, row_end, s);
  } else if (p.m <= 16) {
    few_columns<1>(p, plan, w, e, packed, row, row_end, s);
  } else if (p.m <= 32) {
    few_columns<2>(p, plan, w, e, packed, row, row_end, s);
  } else if (p.m <= 48) {
    few_columns<3>(p, plan, w, e, packed, row, row_end, s);
  } else if (p.m <= few) {
    few_columns<4>(p, plan, w, e, packed, row, row_end, s);
  } else {
    many_columns(p, plan, w, e, packed, row, row_end, s);
  }
}

constexpr Bf16Tiles kernels{pack, Scratch::size, rows};

} // namespace

const Bf16Tiles* bf16_tiles_amx() {
  return &kernels;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::Bf16Tiles* mlxrs::matmul::bf16_tiles_amx() {
  return nullptr;
}

#endif
