// Packs rows of x into tiles of bytes for int8_amx.cpp.
#pragma once

#include <immintrin.h>

#include "transpose_avx512.h"
#include "int_avx512.h"

namespace mlxrs::matmul {
namespace {

// A step is 64 codes. A piece is `steps` steps of k; it has one scale of x and one set of stored sums.
constexpr long step = 64, steps = 4, piece = steps * step;
// The rows of weights of a tile, its columns, and the rows of x in these columns.
constexpr long rows_of_tile = 16, columns = 16, x_rows = 8;

// A piece of eight rows of x. Column i has the high bytes of row i, column 8 + i the low bytes.
struct alignas(64) X {
  // Four codes of each column, then the next four.
  int8_t bytes[steps][step / 4][columns][4];
  // The factor of the sums of each column.
  float scales[columns];
};

// For each group, the sums of eight rows of x, which are multiplied with the biases. Each sum is split into three bf16
// numbers, and groups are stored in pairs.
constexpr long parts = 3, bias_groups = 32;
struct alignas(64) XSums {
  uint16_t of[parts][bias_groups / 2][columns][2];
};

long pieces(const Weights& w) {
  return (w.k + piece - 1) / piece;
}

long bias_tiles(const Weights& w) {
  return (w.groups() + bias_groups - 1) / bias_groups;
}
// The bytes of the pieces of eight rows of x. The sums of their groups are stored after the pieces.
long pieces_size(const Weights& w) {
  return pieces(w) * static_cast<long>(sizeof(X));
}

// A piece of a row as integers with a scale.
struct WholePiece {
  __m512i values[piece / 16];
  float scale;
};

WholePiece whole_piece(Float type, const uint16_t* x, long n) {
  WholePiece to;
  __m512 values[piece / 16];
  __m512i most = _mm512_setzero_si512();
  for (long i = 0; i < piece / 16; i++) {
    values[i] = sixteen(type, x, 16 * i, first_lanes(n - 16 * i));
    most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(values[i]), _mm512_set1_epi32(0x7fffffff)));
  }
  auto [scale, factor] = factors_of(static_cast<uint32_t>(_mm512_reduce_max_epi32(most)));
  to.scale = scale;
  for (long i = 0; i < piece / 16; i++) {
    to.values[i] = _mm512_cvtps_epi32(_mm512_mul_ps(values[i], _mm512_set1_ps(factor)));
  }
  return to;
}

void pack(const Product& p, const Weights& w, long first, long rows, void* packed) {
  alignas(64) uint8_t order[step];
  for (int i = 0; i < step; i++) {
    order[i] = static_cast<uint8_t>(w.bits != 4 ? i : i < 32 ? 2 * i : 2 * i - 63);
  }
  const __m512i places = _mm512_load_si512(order);
  auto* to = static_cast<X*>(packed);
  auto* sums = reinterpret_cast<XSums*>(static_cast<char*>(packed) + pieces_size(w));
  std::memset(sums, 0, bias_tiles(w) * sizeof *sums);
  for (long k = 0; k < w.k; k += piece, to++) {
    __m512i bytes[steps][columns] = {};
    std::memset(to->scales, 0, sizeof to->scales);
    for (long r = 0; r < smaller(rows, p.m - first); r++) {
      WholePiece of = whole_piece(p.type, static_cast<const uint16_t*>(p.x[first + r]) + k, w.k - k);
      to->scales[r] = 256 * of.scale;
      to->scales[x_rows + r] = of.scale;
      __m512i sum = _mm512_setzero_si512();
      for (long s = 0; s < steps; s++) {
        alignas(64) int8_t high[step], low[step];
        for (long i = 0; i < step / 16; i++) {
          __m512i x = of.values[s * (step / 16) + i];
          sum = _mm512_add_epi32(sum, x);
          // The low byte is from -128 to 127; the high byte is the rest.
          __m512i half = _mm512_set1_epi32(128);
          _mm_store_si128(reinterpret_cast<__m128i*>(high + 16 * i), _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(x, half), 8)));
          _mm_store_si128(reinterpret_cast<__m128i*>(low + 16 * i), _mm512_cvtepi32_epi8(x));
        }
        bytes[s][r] = _mm512_permutexvar_epi8(places, _mm512_load_si512(high));
        bytes[s][x_rows + r] = _mm512_permutexvar_epi8(places, _mm512_load_si512(low));
        if ((s + 1) * step % w.group == 0 && k + s * step < w.k) {
          const long group = (k + s * step) / w.group;
          float rest = static_cast<float>(_mm512_reduce_add_epi32(sum)) * of.scale;
          for (auto& part : sums[group / bias_groups].of) {
            uint16_t& to = part[group % bias_groups / 2][r][group % 2];
            to = to_bf16(rest);
            rest -= from_bf16(to);
          }
          sum = _mm512_setzero_si512();
        }
      }
    }
    for (long s = 0; s < steps; s++) {
      transpose(bytes[s]);
      std::memcpy(to->bytes[s], bytes[s], sizeof bytes[s]);
    }
  }
}

long packed_size(const Weights& w, long) {
  return pieces_size(w) + bias_tiles(w) * static_cast<long>(sizeof(XSums));
}

} // namespace
} // namespace mlxrs::matmul
