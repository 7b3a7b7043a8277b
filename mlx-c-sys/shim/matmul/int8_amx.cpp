#include "int_kernels.h"

#if defined(__AMX_INT8__) && defined(__AVX512VBMI__)
#include <immintrin.h>

#include "tiles_amx.h"
#include "transpose_avx512.h"
#include "unpack_avx512.h"
#include "int8_amx.h"
#include "int_avx512.h"

// Products of bytes on AMX tiles. TDPBUSD multiplies 16 rows of weights, 64 codes of each, with 16 columns of x (the
// high and the low bytes of eight rows) and adds to 16 x 16 sums. A sum covers one group of the weights. The sums of a
// group are stored, scaled and added to the sums of other groups, while the tiles multiply the next group.

namespace mlxrs::matmul {
namespace {

struct alignas(64) Sums {
  int32_t of[rows_of_tile][columns];
};
struct alignas(64) Real {
  float of[rows_of_tile][columns];
};

// The scales of some pieces of the weights, one for each step.
struct alignas(64) Scales {
  static constexpr long pieces = 4;
  float of[rows_of_tile][pieces * steps];
};

// The buffers of scales in use at once: those of the stored sums, of the sums in computation, and of the next piece.
// This is the smallest number that works.
constexpr long scales_in_use = 4;
// The prefetch distance in bytes (like `ahead`) when 16 rows are read at a time. All prefetched lines must stay in L1.
constexpr long ahead_of_16 = 512;
// The tiles of weights whose totals are completed together.
constexpr long tiles = 16;

struct Scratch {
  uint8_t codes[2][steps][rows_of_tile][step];
  Sums sums[steps];
  Scales scales[scales_in_use];
  alignas(64) uint16_t biases[rows_of_tile][bias_groups];
  Real totals[tiles];
};

// A compiler barrier: the compiler does not know that tile loads read memory.
INLINE void written() {
  asm volatile("" ::: "memory");
}

// The scales of a row for 16 steps from step `at` on.
INLINE void to_steps(const Weights& w, long row, long at, float* to) {
  const long group_steps = w.group == step ? 1 : 2, group = at / group_steps;
  __m512 of = sixteen(w.scale_type, w.scales, row * w.groups() + group, first_lanes(smaller(16 / group_steps, w.groups() - group)));
  const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  _mm512_store_ps(to, group_steps == 1 ? of : _mm512_permutexvar_ps(twice, of));
}

// The codes of one step, as bytes. BITS is 4, or 0 for any width.
template <int BITS>
INLINE __m512i step_of(const Unpack& unpack, const uint8_t* from) {
  if constexpr (BITS == 0) {
    return unpack(from, step);
  }
  // The even codes, then the odd ones.
  const __m512i shifts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi64x(4), 1);
  __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_and_si512(_mm512_srlv_epi64(twice, shifts), _mm512_set1_epi8(15));
}

// A piece of some rows of weights: its codes as tiles. Rows are `apart` bytes apart, and steps `step_apart`.
struct Piece {
  const uint8_t* codes;
  long apart, step_apart;
  const float* scales;
};

// Loops over rows of weights. The rows of a tile are `distance` apart, because several long ranges of memory are read
// faster than one.
template <int BITS>
class Pass {
  const Weights& w;
  const X* x;
  const XSums* x_sums;
  const long distance, n = pieces(w), row_bytes = w.row_bytes();
  const Unpack unpack{w.bits};
  Scratch& scratch;
  long pieces_done = 0, scales_done = 0;

  // Stored sums that are not scaled and added to a total yet. There are none at first.
  struct Waiting {
    Piece piece;
    const X* x;
    Real* total;
  } waiting{};

  // The next piece. Its rows are prepared some at a time.
  struct Next {
    const uint8_t* from;
    long row, rows, at, apart;
    Piece piece;
    uint8_t (*codes)[rows_of_tile][step];
    Scales* scales;
  } next;

  void turn_to(long row, long rows, long at) {
    const bool in_place = BITS == 8 && rows == rows_of_tile && (at + 1) * piece <= w.k;
    auto& codes = scratch.codes[pieces_done++ % 2];
    next.from = codes_at(row, at);
    next.apart = distance * row_bytes;
    next.row = row;
    next.rows = rows;
    next.at = at;
    next.codes = in_place ? nullptr : codes;
    if (at % Scales::pieces == 0) {
      next.scales = &scratch.scales[scales_done++ % scales_in_use];
    }
    next.piece = {in_place ? codes_at(row, at) : codes[0][0], in_place ? next.apart : step, in_place ? step : rows_of_tile * step,
                  next.scales->of[0] + at % Scales::pieces * steps};
  }

  const uint8_t* codes_at(long row, long at) const {
    return static_cast<const uint8_t*>(w.data) + row * row_bytes + at * bytes_of(piece);
  }

  // The bytes of `codes` codes.
  INLINE long bytes_of(long codes) const {
    return codes * (BITS == 0 ? w.bits : BITS) / 8;
  }

  // Prepares rows [begin, end) of the next piece.
  INLINE void prepare(long begin, long end) {
    const bool is_whole = next.at + 1 < n || w.k % piece == 0, has_scales = next.at % Scales::pieces == 0;
#pragma GCC unroll 6
    for (long r = begin; r < end; r++) {
      // The last row is repeated up to a whole tile.
      const long place = smaller(r, next.rows - 1);
      const uint8_t* from = next.from + place * next.apart;
      for (long i = 0; i < bytes_of(piece); i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(from + i + ahead_of_16), _MM_HINT_T0);
      }
      if (has_scales) {
        const long row = next.row + place * distance;
        to_steps(w, row, next.at * steps, next.scales->of[r]);
        for (auto* of : {w.scales, w.biases}) {
          const long size = w.scale_type == Float::f32 ? 4 : 2;
          _mm_prefetch(static_cast<const char*>(of) + ((row + tiles) * w.groups() + next.at * piece / w.group) * size, _MM_HINT_T0);
        }
      }
      if (next.codes == nullptr) {
        continue;
      }
      auto store = [&](long s) ALWAYS_INLINE {
        _mm512_store_si512(next.codes[s][r], step_of < BITS == 8 ? 0 : BITS > (unpack, from + bytes_of(s * step)));
      };
      if (is_whole) {
#pragma GCC unroll 4
        for (long s = 0; s < steps; s++) {
          store(s);
        }
      } else {
        // The elements of x are zeros here, so these codes do not matter.
        for (long s = 0; s < (w.k % piece) / step; s++) {
          store(s);
        }
      }
    }
  }

  // Scales the stored sums of step s and adds them to `sums`.
  INLINE void add(long s, __m512 (&sums)[rows_of_tile]) {
#pragma GCC unroll 16
    for (long r = 0; r < rows_of_tile; r++) {
      __m512 scale = _mm512_set1_ps(waiting.piece.scales[r * Scales::pieces * steps + s]);
      sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(scratch.sums[s].of[r])), scale, sums[r]);
    }
  }
  INLINE void add_to_total(const __m512 (&sums)[rows_of_tile]) {
    if (waiting.total == nullptr) {
      return;
    }
    const __m512 scales = _mm512_load_ps(waiting.x->scales);
#pragma GCC unroll 16
    for (long r = 0; r < rows_of_tile; r++) {
      float* total = waiting.total->of[r];
      _mm512_store_ps(total, _mm512_fmadd_ps(sums[r], scales, _mm512_load_ps(total)));
    }
  }

  // Writes part number `part` of n biases. A bias is the sum of several bf16 numbers.
  INLINE void write_part(int part, long from, long n, uint16_t* to) const {
    if (w.scale_type == Float::bf16) {
      const __mmask32 there = n >= 32 ? 0xffffffff : (1u << n) - 1;
      _mm512_store_si512(to, _mm512_maskz_loadu_epi16(there, static_cast<const uint16_t*>(w.biases) + from));
      return;
    }
    for (long i = 0; i < bias_groups; i += 16) {
      __m512 rest = sixteen(w.scale_type, w.biases, from + i, first_lanes(n - i));
      __m256i halves;
      for (int j = 0; j <= part; j++) {
        halves = to_bf16(rest);
        rest = _mm512_sub_ps(rest, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)));
      }
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + i), halves);
    }
  }

  // Multiplies a piece with x. Meanwhile it prepares the next piece, and scales the sums of the previous piece. Sums
  // are stored three products late.
  INLINE void multiply(const Piece& of, const X& x, Real* total) {
    __m512 sums[rows_of_tile];
#pragma GCC unroll 16
    for (auto& sum : sums) {
      sum = _mm512_setzero_ps();
    }
    _tile_loadd(0, of.codes, of.apart);
    _tile_loadd(1, x.bytes[0], 64);
    _tile_zero(4);
    _tile_dpbusd(4, 0, 1);
    _tile_stored(5, scratch.sums + 1, 64);
    prepare(0, 6);
    add(0, sums);
    _tile_loadd(2, of.codes + of.step_apart, of.apart);
    _tile_loadd(3, x.bytes[1], 64);
    _tile_zero(5);
    _tile_dpbusd(5, 2, 3);
    _tile_stored(6, scratch.sums + 2, 64);
    prepare(6, 11);
    add(1, sums);
    _tile_loadd(0, of.codes + 2 * of.step_apart, of.apart);
    _tile_loadd(1, x.bytes[2], 64);
    _tile_zero(6);
    _tile_dpbusd(6, 0, 1);
    _tile_stored(7, scratch.sums + 3, 64);
    prepare(11, 16);
    add(2, sums);
    _tile_loadd(2, of.codes + 3 * of.step_apart, of.apart);
    _tile_loadd(3, x.bytes[3], 64);
    _tile_zero(7);
    _tile_dpbusd(7, 2, 3);
    _tile_stored(4, scratch.sums, 64);
    add(3, sums);
    add_to_total(sums);
    waiting = {of, &x, total};
  }

 public:
  Pass(const Weights& w, const void* packed, long distance, Scratch& scratch)
      : w(w),
        x(static_cast<const X*>(packed)),
        x_sums(reinterpret_cast<const XSums*>(static_cast<const char*>(packed) + pieces_size(w))),
        distance(distance),
        scratch(scratch) {}

  // Starts the totals of tile i with the products of the biases of up to 16 rows and the sums of x.
  void begin_totals(long row, long rows, long i) {
    const long groups = w.groups();
    // The bf16 numbers that add up to a bias.
    const int of_bias = w.scale_type == Float::bf16 ? 1 : w.scale_type == Float::f16 ? 2 : 3;
    _tile_zero(3);
    for (long at = 0; at < groups; at += bias_groups) {
      const auto& sums = x_sums[at / bias_groups].of;
      for (int part = 0; part < of_bias; part++) {
        for (long r = 0; r < rows_of_tile; r++) {
          const long from = (row + smaller(r, rows - 1) * distance) * groups + at;
          write_part(part, from, smaller(bias_groups, groups - at), scratch.biases[r]);
        }
        written();
        _tile_loadd(0, scratch.biases, 64);
        _tile_loadd(1, sums[0], 64);
        _tile_dpbf16ps(3, 0, 1);
        _tile_loadd(2, sums[1], 64);
        _tile_dpbf16ps(3, 0, 2);
        _tile_loadd(1, sums[2], 64);
        _tile_dpbf16ps(3, 0, 1);
      }
    }
    _tile_stored(3, scratch.totals + i, 64);
  }

  // Prepares the first piece.
  void begin(long row, long rows) {
    turn_to(row, rows, 0);
    prepare(0, rows_of_tile);
    waiting.piece = next.piece;
  }

  // Adds the products of up to 16 rows, from `row` on, to the totals of tile i. `next_row` is the first row of the next
  // tile.
  INLINE void tile(long row, long rows, long next_row, long i) {
    for (long at = 0; at < n; at++) {
      const Piece now = next.piece;
      at + 1 < n ? turn_to(row, rows, at + 1) : turn_to(next_row, rows, 0);
      multiply(now, x[at], scratch.totals + i);
      written();
    }
  }

  // Scales and adds the last stored sums.
  void end() {
    _tile_stored(5, scratch.sums + 1, 64);
    _tile_stored(6, scratch.sums + 2, 64);
    _tile_stored(7, scratch.sums + 3, 64);
    __m512 sums[rows_of_tile] = {};
    for (long s = 0; s < steps; s++) {
      add(s, sums);
    }
    add_to_total(sums);
    waiting.total = nullptr;
  }

  // Adds the halves for high and low bytes of 16 columns of sums (rows are `apart` floats apart), rounds them, and
  // writes n of each.
  void finish(const Product& p, const float* sums, long apart, long n, long row) const {
    __m512i lanes[columns];
    for (long r = 0; r < columns; r++) {
      lanes[r] = _mm512_load_si512(sums + r * apart);
    }
    transpose(lanes);
    for (long r = 0; r < p.m; r++) {
      __m512 sum = _mm512_add_ps(_mm512_castsi512_ps(lanes[r]), _mm512_castsi512_ps(lanes[x_rows + r]));
      write(p.type, sum, n, static_cast<uint16_t*>(p.y[r]) + row);
    }
  }
};

template <int BITS>
void rows_by(const Product& p, const Weights& w, const void* packed, long row, long row_end, Scratch& scratch) {
  const long distance = rows_apart(row_end - row);
  if (distance > 0) {
    Pass<BITS> pass(w, packed, distance, scratch);
    pass.begin(row, rows_of_tile);
    for (long t = 0; t < distance; t += tiles) {
      const long n = smaller(tiles, distance - t);
      for (long i = 0; i < n; i++) {
        pass.begin_totals(row + t + i, rows_of_tile, i);
      }
      for (long i = 0; i < n; i++) {
        pass.tile(row + t + i, rows_of_tile, row + smaller(t + i + 1, distance - 1), i);
      }
      pass.end();
      for (long r = 0; r < rows_of_tile; r++) {
        pass.finish(p, scratch.totals[0].of[r], rows_of_tile * columns, n, row + r * distance + t);
      }
    }
  }
  for (row += rows_of_tile * distance; row < row_end; row += rows_of_tile) {
    const long n = smaller(rows_of_tile, row_end - row);
    Pass<BITS> rest(w, packed, 1, scratch);
    rest.begin(row, n);
    rest.begin_totals(row, n, 0);
    rest.tile(row, n, row, 0);
    rest.end();
    rest.finish(p, scratch.totals[0].of[0], columns, n, row);
  }
}

void rows(const Product& p, const Weights& w, const void* packed, long row, long row_end, void* memory) {
  const Configuration configuration;
  auto by = w.bits == 4 ? rows_by<4> : w.bits == 8 ? rows_by<8> : rows_by<0>;
  by(p, w, packed, row, row_end, *static_cast<Scratch*>(memory));
}

long scratch_size(const Product&, const Weights&) {
  return sizeof(Scratch);
}

constexpr IntKernels kernels{rows_of_tile, x_rows, packed_size, pack, scratch_size, rows};

} // namespace

const IntKernels* int8_amx() {
  return &kernels;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::IntKernels* mlxrs::matmul::int8_amx() {
  return nullptr;
}

#endif
