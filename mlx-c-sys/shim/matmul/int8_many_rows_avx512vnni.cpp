// The kernels of int_many_rows.h with AVX-512 VNNI.
#include "int_kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#include <immintrin.h>

#include "fp8_few_rows.h"
#include "transpose_avx512.h"
#include "unpack_avx512.h"
#include "int_avx512.h"
#include "int_many_rows.h"

namespace mlxrs::matmul {
namespace {

// Codes are bytes, four to a lane. x is two planes of bytes, 256 high + low. VPDPBUSD multiplies twice as many bytes as
// VPDPWSSD multiplies 16-bit integers, so the multiplications cost the same, but byte codes need half of the loads and
// stores.
//
// Vectors with 16 rows of x.
struct Sixteen {
  using Code = uint8_t;
  using Codes = __m512i;
  using Unpack = matmul::Unpack;
  // Unpack does not read beyond the codes.
  static constexpr long codes = 64, loaded_of_any = 0, in_lane = 4;
  static constexpr int side = 8, across = 1;

  // For codes of 4 bits, the even ones of 32 elements come before the odd ones.
  template <Form FORM>
  static INLINE __m512i expand(const Unpack& unpack, const uint8_t* from) {
    if constexpr (FORM == Form::eight) {
      return _mm512_loadu_si512(from);
    } else if constexpr (FORM == Form::any) {
      return unpack(from, codes);
    }
    const __m512i halves = _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), shifts = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    __m512i twice = _mm512_permutexvar_epi64(halves, _mm512_castsi256_si512(both));
    __m512i nibbles = _mm512_and_si512(_mm512_srlv_epi64(twice, shifts), _mm512_set1_epi8(15));
    if constexpr (FORM == Form::e2m1) {
      return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(e2m1_codes))), nibbles);
    }
    return nibbles;
  }
  static constexpr long scales = 16;
  template <Form FORM>
  static INLINE SixteenGroups groups(const Weights& w, long at, long n) {
    return sixteen_groups<FORM, 32>(w, at, first_lanes(n));
  }

  // The high and the low bytes of 32 integers of x, in the order of the codes.
  class Layout {
   public:
    explicit Layout(int bits) {
      alignas(64) uint8_t places[64];
      for (int i = 0; i < 32; i++) {
        int element = bits != 4 ? i : i < 16 ? 2 * i : 2 * i - 31;
        places[i] = static_cast<uint8_t>(2 * element);
        places[32 + i] = static_cast<uint8_t>(64 + 2 * element);
      }
      places_ = _mm512_load_si512(places);
    }
    INLINE __m512i operator()(const int16_t* x) const {
      __m512i numbers = _mm512_loadu_si512(x);
      return _mm512_permutex2var_epi8(high_bytes(numbers), places_, numbers);
    }

   private:
    __m512i places_;
  };

  using Real = __m512;
  using Words = __m512i;
  struct Sums {
    __m512i high, low;
  };
  using X = Sums;
  static constexpr long width = 16, of_w = 1, panel = 48;

  static INLINE Real spread(const float* from) {
    return all(*from);
  }
  static INLINE void put(uint8_t* to, const Codes (&x)[1]) {
    _mm512_storeu_si512(to, x[0]);
  }
  static INLINE void put(float* to, const Real (&x)[1]) {
    store(to, x[0]);
  }
  static INLINE void transpose(Words (&rows)[16]) {
    matmul::transpose(rows);
  }
  static void lay(const Layout& layout, const int16_t (&whole)[16][128], long n, int16_t* to) {
    for (long k = 0; k < n; k += 32) {
      __m512i rows[16];
      for (long r = 0; r < 16; r++) {
        rows[r] = layout(whole[r] + k);
      }
      transpose(rows);
      for (long i = 0; i < 8; i++, to += 64) {
        _mm512_storeu_si512(to, rows[i]);
        _mm512_storeu_si512(to + 32, rows[8 + i]);
      }
    }
  }

  static INLINE X load_x(const int16_t* from) {
    return {_mm512_loadu_si512(from), _mm512_loadu_si512(from + 32)};
  }
  static INLINE Sums none_yet() {
    return {_mm512_setzero_si512(), _mm512_setzero_si512()};
  }
  static INLINE __m512i few(const uint8_t* from) {
    int four;
    std::memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static INLINE void add(Sums& sums, X x, __m512i w) {
    sums.high = _mm512_dpbusd_epi32(sums.high, w, x.high);
    sums.low = _mm512_dpbusd_epi32(sums.low, w, x.low);
    // Without this, GCC moves each sum twice for every product.
    asm("" : "+v"(sums.high), "+v"(sums.low));
  }
  static INLINE Real from(Sums sums) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(sums.high, 8), sums.low));
  }
  static INLINE Words bits(Real x) {
    return _mm512_castps_si512(x);
  }
  static INLINE Real real(Words x) {
    return _mm512_castsi512_ps(x);
  }

  struct EvenOdd {
    Real even, odd;
  };
  static INLINE EvenOdd pairs(const uint8_t* from) {
    const __m256i places = _mm256_set1_epi16(static_cast<short>(0xbf80)), two = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    auto real = [&](__m256i high) ALWAYS_INLINE { return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(high, 1), places)); };
    return {real(_mm256_slli_epi16(two, 8)), real(two)};
  }

  static INLINE Real zero() {
    return _mm512_setzero_ps();
  }
  static INLINE Real load(const float* from) {
    return _mm512_loadu_ps(from);
  }
  static INLINE Real from_bf16(const void* from) {
    __m256i halves = _mm256_loadu_si256(static_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static INLINE Real from_f16(const void* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  static INLINE void store(float* to, Real x) {
    _mm512_storeu_ps(to, x);
  }
  static INLINE Real all(float x) {
    return _mm512_set1_ps(x);
  }
  static INLINE Real multiply(Real x, Real y) {
    return _mm512_mul_ps(x, y);
  }
  static INLINE Real sum_of(Real x, Real y) {
    return _mm512_add_ps(x, y);
  }
  static INLINE Real fma(Real x, Real y, Real z) {
    return _mm512_fmadd_ps(x, y, z);
  }
  static INLINE float sum(Real x) {
    return _mm512_reduce_add_ps(x);
  }
};

// Vectors with eight rows of x and two of weights.
struct Eight : Sixteen {
  static constexpr long of_w = 2, panel = 64;

  static INLINE __m512i few(const uint8_t* from) {
    long long eight;
    std::memcpy(&eight, from, sizeof eight);
    return _mm512_set1_epi64(eight);
  }
  static INLINE Real spread(const float* from) {
    double two;
    std::memcpy(&two, from, sizeof two);
    return _mm512_castpd_ps(_mm512_set1_pd(two));
  }
  // Interleaves the 32-bit elements of two vectors.
  static INLINE void put(void* to, __m512i a, __m512i b) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi32(a, low, b));
    _mm512_storeu_si512(static_cast<char*>(to) + 64, _mm512_permutex2var_epi32(a, high, b));
  }
  static INLINE void put(uint8_t* to, const Codes (&x)[2]) {
    put(to, x[0], x[1]);
  }
  static INLINE void put(float* to, const Real (&x)[2]) {
    put(to, bits(x[0]), bits(x[1]));
  }
};

} // namespace

const IntKernels* int8_8_rows_avx512vnni() {
  static_assert(IntManyRows<Eight>::of_x == 8);
  return &many_rows_of<Eight>;
}

const IntKernels* int8_many_rows_avx512vnni() {
  return &many_rows_of<Sixteen>;
}

const IntKernels* fp8_few_rows_avx512vnni() {
  return &few_rows_of<Fp8FewRows<Sixteen>, OfMxfp8>;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::IntKernels* mlxrs::matmul::int8_8_rows_avx512vnni() {
  return nullptr;
}
const mlxrs::matmul::IntKernels* mlxrs::matmul::int8_many_rows_avx512vnni() {
  return nullptr;
}
const mlxrs::matmul::IntKernels* mlxrs::matmul::fp8_few_rows_avx512vnni() {
  return nullptr;
}

#endif
