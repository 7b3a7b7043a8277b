// The kernels of int16_few_rows.h, int_many_rows.h and fp8_few_rows.h with AVX2.
#include "int_kernels.h"

#ifdef __AVX2__
#include <immintrin.h>

#include "fp8_few_rows.h"
#include "transpose_avx2.h"
#include "unpack_avx2.h"
#include "int_many_rows.h"
#include "int16_few_rows.h"

namespace mlxrs::matmul {
namespace {

struct Avx2 {
  using Real = __m256;
  using Sums = __m256i;
  using Codes = __m256i;
  static constexpr long width = 8, least_group = 32;
  // AVX2 has 16 registers: they hold the sums of two blocks of weights.
  static constexpr int beside = 2;

  static INLINE Codes load(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  static INLINE Codes widen(const uint8_t* from) {
    return Sixteen::of_bytes(from);
  }
  template <int I>
  static INLINE Codes nibble(Codes from) {
    Codes there = _mm256_srli_epi16(from, 4 * I);
    return I == 3 ? there : _mm256_and_si256(there, _mm256_set1_epi16(15));
  }

  template <int I>
  static INLINE Codes e2m1(Codes from) {
    Codes nibbles = _mm256_and_si256(I % 2 == 0 ? from : _mm256_srli_epi16(from, 4), _mm256_set1_epi8(15));
    Codes bytes = _mm256_shuffle_epi8(table(), nibbles);
    return I < 2 ? _mm256_and_si256(bytes, _mm256_set1_epi16(255)) : _mm256_srli_epi16(bytes, 8);
  }
  static INLINE __m256i table() {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(e2m1_codes)));
  }

  using Unpack = Sixteen;

  static INLINE Sums multiply(Codes x, Codes w) {
    return _mm256_madd_epi16(x, w);
  }
  static INLINE Sums add(Sums sums, Codes x, Codes w) {
    // Inline assembly, because with an intrinsic GCC delays all additions until it has no registers left, or copies
    // each sum to another register and back.
    asm("vpaddd %1, %0, %0" : "+x"(sums) : "x"(_mm256_madd_epi16(x, w)));
    return sums;
  }

  static INLINE Sums none_yet() {
    return _mm256_setzero_si256();
  }
  static INLINE Sums sum_of(Sums a, Sums b) {
    return _mm256_add_epi32(a, b);
  }
  // Sums of four lanes each: of the lower halves of four vectors, and of the upper halves.
  static INLINE Sums fours(Sums a, Sums b, Sums c, Sums d) {
    return _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
  }
  static INLINE Sums folded(const Sums (&sums)[8]) {
    Sums a = fours(sums[0], sums[1], sums[2], sums[3]), b = fours(sums[4], sums[5], sums[6], sums[7]);
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
  }
  static INLINE Sums folded(const Sums (&sums)[4]) {
    return _mm256_permutevar8x32_epi32(fours(sums[0], sums[1], sums[2], sums[3]), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  static INLINE Sums folded(const Sums (&sums)[2]) {
    return _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7));
  }

  struct EvenOdd {
    Real even, odd;
  };
  static INLINE EvenOdd pairs(const uint8_t* from) {
    const __m128i places = _mm_set1_epi16(static_cast<short>(0xbf80)), two = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    auto real = [&](__m128i high) ALWAYS_INLINE { return _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(high, 1), places)); };
    return {real(_mm_slli_epi16(two, 8)), real(two)};
  }

  static INLINE Real zero() {
    return _mm256_setzero_ps();
  }
  static INLINE Real load(const float* from) {
    return _mm256_loadu_ps(from);
  }
  static INLINE Real from_bf16(const void* from) {
    return eight_bf16(from);
  }
  static INLINE Real from_f16(const void* from) {
    return eight_f16(from);
  }
  static INLINE void store(float* to, Real x) {
    _mm256_storeu_ps(to, x);
  }
  static INLINE Real all(float x) {
    return _mm256_set1_ps(x);
  }
  static INLINE Real from(Sums x) {
    return _mm256_cvtepi32_ps(x);
  }
  static INLINE Real multiply(Real x, Real y) {
    return _mm256_mul_ps(x, y);
  }
  static INLINE Real sum_of(Real x, Real y) {
    return _mm256_add_ps(x, y);
  }
  static INLINE Real fma(Real x, Real y, Real z) {
    return _mm256_fmadd_ps(x, y, z);
  }
  static INLINE float sum(Real x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

struct Tiles : Avx2 {
  using Code = int16_t;
  using X = Codes;
  using Words = __m256i;
  static constexpr long codes = 16, loaded_of_any = 16, in_lane = 2, of_w = 1, panel = 24;
  static constexpr int side = 6, across = 2;

  template <Form FORM>
  static INLINE Codes expand(const Unpack& unpack, const uint8_t* from) {
    if constexpr (FORM == Form::e2m1) {
      return _mm256_and_si256(_mm256_shuffle_epi8(table(), Sixteen::of_nibbles(from)), _mm256_set1_epi16(255));
    }
    return FORM == Form::eight ? Sixteen::of_bytes(from) : FORM == Form::four ? Sixteen::of_nibbles(from) : unpack(from);
  }
  static constexpr long scales = 8;
  template <Form FORM>
  static INLINE Affine<Avx2> groups(const Weights& w, long at, long n) {
    return some_groups<Avx2, FORM>(w, at, n);
  }
  static INLINE void transpose(Words (&rows)[8]) {
    matmul::transpose(rows);
  }
  struct Layout {
    explicit Layout(int) {}
  };
  // Stores pairs of elements, in the order of x.
  static void lay(const Layout&, const int16_t (&whole)[8][128], long n, int16_t* to) {
    for (long k = 0; k < n; k += 16) {
      Words rows[8];
      for (long r = 0; r < 8; r++) {
        rows[r] = load(whole[r] + k);
      }
      transpose(rows);
      for (long r = 0; r < 8; r++, to += 16) {
        put(to, {rows[r]});
      }
    }
  }

  static INLINE Words bits(Real x) {
    return _mm256_castps_si256(x);
  }
  static INLINE Real real(Words x) {
    return _mm256_castsi256_ps(x);
  }
  static INLINE Codes few(const int16_t* from) {
    int both;
    std::memcpy(&both, from, sizeof both);
    return _mm256_set1_epi32(both);
  }
  static INLINE X load_x(const int16_t* from) {
    return load(from);
  }
  static INLINE void add(Sums& sums, X x, Codes w) {
    sums = Avx2::add(sums, x, w);
  }
  static INLINE Real spread(const float* from) {
    return all(*from);
  }
  static INLINE void put(int16_t* to, const Codes (&x)[1]) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x[0]);
  }
  static INLINE void put(float* to, const Real (&x)[1]) {
    store(to, x[0]);
  }
  using Avx2::load;
};

} // namespace

const IntKernels* int16_many_rows_avx2() {
  return &many_rows_of<Tiles>;
}

const IntKernels* int16_few_rows_avx2() {
  return &few_rows_of<Int16FewRows<Avx2>>;
}

const IntKernels* fp8_few_rows_avx2() {
  return &few_rows_of<Fp8FewRows<Avx2>, OfMxfp8>;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::IntKernels* mlxrs::matmul::int16_few_rows_avx2() {
  return nullptr;
}
const mlxrs::matmul::IntKernels* mlxrs::matmul::int16_many_rows_avx2() {
  return nullptr;
}
const mlxrs::matmul::IntKernels* mlxrs::matmul::fp8_few_rows_avx2() {
  return nullptr;
}

#endif
