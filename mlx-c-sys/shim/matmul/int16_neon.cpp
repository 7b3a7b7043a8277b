// The kernel of int16_few_rows.h with NEON.
#include "int_kernels.h"

#ifdef __aarch64__
#include <arm_neon.h>

#include "int16_few_rows.h"

namespace mlxrs::matmul {
namespace {

struct Neon {
  using Real = float32x4_t;
  using Sums = int32x4_t;
  using Codes = int16x8_t;
  // With groups of 16, the sum of a lane would mix elements of two groups.
  static constexpr long width = 4, least_group = 32;
  static constexpr int beside = 4;

  static INLINE Codes load(const int16_t* from) {
    return vld1q_s16(from);
  }
  static INLINE Codes load(const uint8_t* from) {
    return vreinterpretq_s16_u8(vld1q_u8(from));
  }
  static INLINE Codes widen(const uint8_t* from) {
    return vreinterpretq_s16_u16(vmovl_u8(vld1_u8(from)));
  }
  template <int I>
  static INLINE Codes nibble(Codes from) {
    uint16x8_t words = vreinterpretq_u16_s16(from);
    if constexpr (I == 3) {
      return vreinterpretq_s16_u16(vshrq_n_u16(words, 12));
    } else if constexpr (I > 0) {
      words = vshrq_n_u16(words, 4 * I);
    }
    return vreinterpretq_s16_u16(vandq_u16(words, vdupq_n_u16(15)));
  }

  template <int I>
  static INLINE Codes e2m1(Codes from) {
    uint8x16_t bytes = vreinterpretq_u8_s16(from);
    bytes = vqtbl1q_u8(vld1q_u8(e2m1_codes), I % 2 == 0 ? vandq_u8(bytes, vdupq_n_u8(15)) : vshrq_n_u8(bytes, 4));
    uint16x8_t words = vreinterpretq_u16_u8(bytes);
    return vreinterpretq_s16_u16(I < 2 ? vandq_u16(words, vdupq_n_u16(255)) : vshrq_n_u16(words, 8));
  }

  // Each lane gets the two bytes that contain its code. The code is shifted down and masked.
  struct Unpack {
    uint8x16_t bytes;
    int16x8_t down;
    uint16x8_t mask;
    int bits;

    explicit Unpack(int bits) : mask(vdupq_n_u16(static_cast<uint16_t>((1 << bits) - 1))), bits(bits) {
      uint8_t at[16];
      int16_t shift[8];
      for (int i = 0; i < 8; i++) {
        at[2 * i] = static_cast<uint8_t>(i * bits / 8);
        at[2 * i + 1] = static_cast<uint8_t>(i * bits / 8 + 1);
        shift[i] = static_cast<int16_t>(-(i * bits % 8));
      }
      bytes = vld1q_u8(at);
      down = vld1q_s16(shift);
    }
    INLINE Codes operator()(const uint8_t* from) const {
      uint16x8_t words = vreinterpretq_u16_u8(vqtbl1q_u8(vld1q_u8(from), bytes));
      return vreinterpretq_s16_u16(vandq_u16(vshlq_u16(words, down), mask));
    }
  };

  static INLINE Sums multiply(Codes x, Codes w) {
    return vmlal_high_s16(vmull_s16(vget_low_s16(x), vget_low_s16(w)), x, w);
  }
  static INLINE Sums add(Sums sums, Codes x, Codes w) {
    return vmlal_high_s16(vmlal_s16(sums, vget_low_s16(x), vget_low_s16(w)), x, w);
  }

  static INLINE Sums none_yet() {
    return vdupq_n_s32(0);
  }
  static INLINE Sums sum_of(Sums a, Sums b) {
    return vaddq_s32(a, b);
  }
  static INLINE Sums folded(const Sums (&sums)[4]) {
    return vpaddq_s32(vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3]));
  }

  static INLINE Real load(const float* from) {
    return vld1q_f32(from);
  }
  static INLINE Real from_bf16(const void* from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(static_cast<const uint16_t*>(from)), 16));
  }
  static INLINE Real from_f16(const void* from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(static_cast<const uint16_t*>(from))));
  }
  static INLINE void store(float* to, Real x) {
    vst1q_f32(to, x);
  }
  static INLINE Real all(float x) {
    return vdupq_n_f32(x);
  }
  static INLINE Real from(Sums x) {
    return vcvtq_f32_s32(x);
  }
  static INLINE Real multiply(Real x, Real y) {
    return vmulq_f32(x, y);
  }
  static INLINE Real fma(Real x, Real y, Real z) {
    return vfmaq_f32(z, x, y);
  }
};

} // namespace

const IntKernels* int16_neon() {
  return &few_rows_of<Int16FewRows<Neon>>;
}

} // namespace mlxrs::matmul

#else

const mlxrs::matmul::IntKernels* mlxrs::matmul::int16_neon() {
  return nullptr;
}

#endif
