// Dequantisation with AVX-512 VBMI and BF16: 64 elements at a time.
#include "dequantize_portable.h"

#if defined(__AVX512VBMI__) && defined(__AVX512BF16__)
#include <immintrin.h>

#include "convert_avx512.h"
#include "unpack_avx512.h"

namespace mlxrs::matmul {
namespace {

#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE

// The values of the 4-bit floats (e2m1).
INLINE __m512 e2m1s() {
  return _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
}

// One row of a panel.
struct Row {
  const uint8_t* codes;
  const float *scales, *biases;
};

// Prefetches the next panel's memory for the elements from `at` on, of `n` in all.
INLINE void fetch(const Panel& p, long r, long at, long n) {
  _mm_prefetch(reinterpret_cast<const char*>(p.next) + (r * n + at) * p.w.bits / 8, _MM_HINT_T1);
}

// Calls body(row, r) for each row of a panel.
template <typename Body>
INLINE void each_row(const Panel& p, const Body& body) {
  long bytes = p.w.row_bytes();
  Row row{static_cast<const uint8_t*>(p.w.data) + p.row * bytes, p.scales - p.group, p.biases - p.group};
  for (long r = 0; r < p.rows; r++) {
    body(row, r);
    row.codes += bytes;
    row.scales += p.groups;
    row.biases += p.groups;
  }
}

// The group of element k is k >> shift. Groups have 16, 32, 64 or 128 elements.
INLINE int shift_of(const Weights& w) {
  return __builtin_ctz(static_cast<unsigned>(w.group));
}

// Elements [16 i, 16 i + 16) of the 64 elements from k on. Their group is (k + 16 i) >> shift. Codes of whole bytes are
// read in place.
template <Coding CODING, bool BYTES>
INLINE __m512 sixteen(const Row& row, __m512i codes, long k, int shift, int i) {
  long g = (k + 16 * i) >> shift;
  __m128i four = i == 0 ? _mm512_castsi512_si128(codes) : _mm512_extracti32x4_epi32(codes, i);
  if constexpr (BYTES) {
    four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row.codes + k + 16 * i));
  }
  __m512i c = _mm512_cvtepu8_epi32(four);
  __m512 scale = _mm512_set1_ps(row.scales[g]);
  if constexpr (CODING == Coding::affine) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(c), scale, _mm512_set1_ps(row.biases[g]));
  } else if constexpr (CODING == Coding::mxfp8) {
    return _mm512_mul_ps(from_e4m3s(c), scale);
  } else {
    return _mm512_mul_ps(_mm512_permutexvar_ps(c, e2m1s()), scale);
  }
}

template <Coding CODING, bool BYTES>
void packed_to_f32(const Panel& p, long k, long k_end, float* to, long ld) {
  Unpack unpack(p.w.bits);
  int shift = shift_of(p.w);
  each_row(p, [&](const Row& row, long r) ALWAYS_INLINE {
    float* y = to + r * ld - k;
    for (long at = k; at < k_end; at += 64) {
      const uint8_t* from = row.codes + at * p.w.bits / 8;
      fetch(p, r, at - k, k_end - k);
      __m512i codes = BYTES ? _mm512_setzero_si512() : unpack(from, k_end - at);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        if (at + 16 * i < k_end) {
          _mm512_storeu_ps(y + at + 16 * i, sixteen<CODING, BYTES>(row, codes, at, shift, i));
        }
      }
    }
  });
}

template <Coding CODING, bool BYTES>
void packed_to_bf16(const Panel& p, long k, long k_end, uint16_t* to, long ld) {
  Unpack unpack(p.w.bits);
  int shift = shift_of(p.w);
  each_row(p, [&](const Row& row, long r) ALWAYS_INLINE {
    uint16_t* y = to + r * ld - k;
    for (long at = k; at < k_end; at += 64) {
      const uint8_t* from = row.codes + at * p.w.bits / 8;
      fetch(p, r, at - k, k_end - k);
      __m512i codes = BYTES ? _mm512_setzero_si512() : unpack(from, k_end - at);
#pragma GCC unroll 2
      for (int i = 0; i < 4; i += 2) {
        if (at + 16 * i < k_end) {
          __m512 low = sixteen<CODING, BYTES>(row, codes, at, shift, i), high = sixteen<CODING, BYTES>(row, codes, at, shift, i + 1);
          _mm512_storeu_si512(y + at + 16 * i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
      }
    }
  });
}

// 4-bit codes: a group has only 16 values. They are computed once and then looked up, 32 at a time, in memory order.
// The result has the order of the nibbles of words or bytes (see Dequantizer).
template <bool AFFINE>
INLINE __m512 values_of(const Row& row, long g) {
  __m512 scale = _mm512_set1_ps(row.scales[g]);
  if constexpr (AFFINE) {
    const __m512 q = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_fmadd_ps(q, scale, _mm512_set1_ps(row.biases[g]));
  }
  return _mm512_mul_ps(e2m1s(), scale);
}
template <bool AFFINE>
INLINE __m512i table_of(const Row& row, long g, long g2) {
  return (__m512i)_mm512_cvtne2ps_pbh(values_of<AFFINE>(row, g2), values_of<AFFINE>(row, g));
}

// Groups of 64 or 128 elements: 64 elements are 16 words of one group, with four elements in each. The table has each
// value twice, so that index bits above the lowest four do not matter.
template <int GROUP>
void words_to_bf16(const Panel& p, long k, long k_end, uint16_t* to, long ld) {
  const __m512i first = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
  const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(8));
  const uint8_t* next = p.next;
  each_row(p, [&](const Row& row, long r) ALWAYS_INLINE {
    uint16_t* y = to + r * ld;
    const uint8_t* from = row.codes + k / 2;
    auto sixty_four = [&](long at) ALWAYS_INLINE {
      __m512 values = values_of<true>(row, at / GROUP);
      __m512i table = (__m512i)_mm512_cvtne2ps_pbh(values, values);
      __m512i codes = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
      _mm512_storeu_si512(y, _mm512_permutexvar_epi16(_mm512_srlv_epi16(codes, first), table));
      _mm512_storeu_si512(y + 32, _mm512_permutexvar_epi16(_mm512_srlv_epi16(codes, second), table));
      from += 32;
      y += 64;
    };
    for (long at = k; at < k_end; at += 128) {
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
      next += 64;
      sixty_four(at);
      if (at + 64 < k_end) {
        sixty_four(at + 64);
      }
    }
  });
}

// Groups of 16 or 32 elements: 64 elements are 32 bytes of two or four groups.
template <bool AFFINE, int GROUPS>
void bytes_to_bf16(const Panel& p, long k, long k_end, uint16_t* to, long ld) {
  alignas(64) uint16_t which[32];
  for (int i = 0; i < 32; i++) {
    which[i] = static_cast<uint16_t>(i * GROUPS / 32 * 16);
  }
  const __m512i tables = _mm512_load_si512(which), nibble = _mm512_set1_epi16(15);
  long last = p.group + p.groups - 1;
  int shift = shift_of(p.w);
  each_row(p, [&](const Row& row, long r) ALWAYS_INLINE {
    uint16_t* y = to + r * ld - k;
    // There are no groups after the last one.
    auto table = [&](long g) ALWAYS_INLINE {
      return table_of<AFFINE>(row, g < last ? g : last, g + 1 < last ? g + 1 : last);
    };
    for (long at = k; at < k_end; at += 64) {
      const uint8_t* from = row.codes + at / 2;
      fetch(p, r, at - k, k_end - k);
      __mmask32 there = k_end - at >= 64 ? 0xffffffff : (1u << (k_end - at) / 2) - 1;
      __m512i codes = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(there, from));
      __m512i even = _mm512_ternarylogic_epi32(codes, nibble, tables, 0xea);
      __m512i odd = _mm512_or_si512(_mm512_srli_epi16(codes, 4), tables);
      long g = at >> shift;
      __m512i first = table(g), low, high;
      if constexpr (GROUPS == 4) {
        __m512i second = table(g + 2);
        low = _mm512_permutex2var_epi16(first, even, second);
        high = _mm512_permutex2var_epi16(first, odd, second);
      } else {
        low = _mm512_permutexvar_epi16(even, first);
        high = _mm512_permutexvar_epi16(odd, first);
      }
      _mm512_storeu_si512(y + at, _mm512_maskz_mov_epi16(there, low));
      _mm512_storeu_si512(y + at + 32, _mm512_maskz_mov_epi16(there, high));
    }
  });
}

// Copies dense rows of bf16.
void dense_to_bf16(const Panel& p, long k, long k_end, uint16_t* to, long ld) {
  const uint16_t* from = static_cast<const uint16_t*>(p.w.data) + p.row * p.w.k;
  for (long r = 0; r < p.rows; r++, from += p.w.k, to += ld) {
    for (long at = k; at < k_end; at += 32) {
      fetch(p, r, at - k, k_end - k);
      __mmask32 there = k_end - at >= 32 ? 0xffffffff : (1u << (k_end - at)) - 1;
      _mm512_mask_storeu_epi16(to + at - k, there, _mm512_maskz_loadu_epi16(there, from + at));
    }
  }
}

void panel_to_f32(const Panel& p, long k, long k_end, float* to, long ld) {
  switch (p.w.coding) {
    case Coding::affine:
      return p.w.bits == 8 ? packed_to_f32<Coding::affine, true>(p, k, k_end, to, ld)
                           : packed_to_f32<Coding::affine, false>(p, k, k_end, to, ld);
    case Coding::mxfp8:
      return packed_to_f32<Coding::mxfp8, true>(p, k, k_end, to, ld);
    case Coding::mxfp4:
    case Coding::nvfp4:
      return packed_to_f32<Coding::mxfp4, false>(p, k, k_end, to, ld);
    default:
      return dequantize_avx2()->to_f32(p, k, k_end, to, ld);
  }
}

void panel_to_bf16(const Panel& p, long k, long k_end, uint16_t* to, long ld) {
  switch (p.w.coding) {
    case Coding::affine:
      if (p.w.bits != 4) {
        return p.w.bits == 8 ? packed_to_bf16<Coding::affine, true>(p, k, k_end, to, ld)
                             : packed_to_bf16<Coding::affine, false>(p, k, k_end, to, ld);
      }
      return p.w.group == 32 ? bytes_to_bf16<true, 2>(p, k, k_end, to, ld)
          : p.w.group == 64  ? words_to_bf16<64>(p, k, k_end, to, ld)
                             : words_to_bf16<128>(p, k, k_end, to, ld);
    case Coding::mxfp4:
      return bytes_to_bf16<false, 2>(p, k, k_end, to, ld);
    case Coding::nvfp4:
      return bytes_to_bf16<false, 4>(p, k, k_end, to, ld);
    case Coding::mxfp8:
      return packed_to_bf16<Coding::mxfp8, true>(p, k, k_end, to, ld);
    case Coding::bf16:
      return dense_to_bf16(p, k, k_end, to, ld);
    default:
      return dequantize_portable().to_bf16(p, k, k_end, to, ld);
  }
}

int dealt(const Weights& w) {
  return w.bits != 4 ? 1 : w.group < 64 ? 2 : 4;
}

constexpr Dequantizer dequantizer{panel_to_f32, panel_to_bf16, dealt, scales_to_f32};

} // namespace

const Dequantizer* dequantize_avx512bf16() {
  return &dequantizer;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::Dequantizer* mlxrs::matmul::dequantize_avx512bf16() {
  return nullptr;
}

#endif
