// Decoders of weight matrices: `Affine`, `Floats` and `DenseCodes`. Each loads one unit, which is 32 adjacent elements of a
// row (`bits` words of 32 bits), and unpacks eight elements at a time to T (bf16 or f16), as four words of two elements
// each, in the order of `Pairs`. `load` reads unit `unit` of the whole matrix. A quantisation group has 2^group_bits
// units.
#pragma once

#include "cuda/device.cuh"

namespace mlxrs::cuda {

// Which of eight adjacent elements a word holds: (0, 1), (2, 3), .. or (0, 4), (1, 5), ..
enum class Pairs { adjacent, halves };

// Brings eight adjacent elements of T into the order of `P`.
template <Pairs P>
__device__ inline void arrange(const uint4& x, uint32_t (&y)[4]) {
  if constexpr (P == Pairs::adjacent) {
    y[0] = x.x, y[1] = x.y, y[2] = x.z, y[3] = x.w;
  } else {
    y[0] = __byte_perm(x.x, x.z, 0x5410);
    y[1] = __byte_perm(x.x, x.z, 0x7632);
    y[2] = __byte_perm(x.y, x.w, 0x5410);
    y[3] = __byte_perm(x.y, x.w, 0x7632);
  }
}

// Loads `Words` words. With `aligned`, `from` is a multiple of 16 bytes, and loads take 16 bytes each.
template <int Words>
__device__ inline void load_words(const uint32_t* from, bool aligned, uint32_t (&to)[Words]) {
  if (Words % 4 == 0 && aligned) {
#pragma unroll
    for (int i = 0; i < Words / 4; i++) {
      uint4 v = load_once(reinterpret_cast<const uint4*>(from) + i);
      to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < Words; i++) {
      to[i] = load_once(from + i);
    }
  }
}

// Code i of a row. Codes are packed without gaps, beginning at the lowest bit; a code may span two words.
template <int Bits, int Words>
__device__ inline uint32_t code(const uint32_t (&words)[Words], int i) {
  int at = i * Bits, word = at / 32, shift = at % 32;
  uint32_t v = words[word] >> shift;
  if (shift + Bits > 32) {
    v |= words[word + 1] << (32 - shift);
  }
  return v & ((1u << Bits) - 1);
}

// Reinterprets 16 bits as a T.
template <class T>
__device__ inline T of_bits(uint32_t bits) {
  auto half = static_cast<uint16_t>(bits);
  return *reinterpret_cast<const T*>(&half);
}

// Integer codes: code * scale + bias, as in MLX's `quantize`. Scale and bias have type T, and the result is rounded
// once.
template <class T, int Bits>
struct Affine {
  static constexpr Pairs pairs = Bits == 4 ? Pairs::halves : Pairs::adjacent;
  static constexpr bool is_packed = true;
  static constexpr int bits = Bits;

  // Scale and bias are the raw bits of T. Converting them in `load` would wait for memory there.
  uint32_t words[Bits], scale, bias;

  __device__ void load(const void* weight, const void* scales, const void* biases, uint32_t unit, int group_bits, bool aligned) {
    load_words(static_cast<const uint32_t*>(weight) + static_cast<int64_t>(unit) * Bits, aligned, words);
    uint32_t of = unit >> group_bits;
    scale = static_cast<const uint16_t*>(scales)[of];
    bias = static_cast<const uint16_t*>(biases)[of];
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < Bits; i++) {
      words[i] = 0;
    }
    scale = bias = 0;
  }
  // Unpacks elements 8 i to 8 i + 7.
  __device__ void eight(int i, uint32_t (&y)[4]) const {
    if constexpr (Bits == 8 && is_bf16<T>) {
      // bf16 has 7 bits of mantissa, too few for codes above 127, so this case computes in float32.
      float s = wide(of_bits<T>(scale)), b = wide(of_bits<T>(bias));
#pragma unroll
      for (int j = 0; j < 4; j++) {
        uint32_t word = words[2 * i + j / 2];
        float low = __uint_as_float(__byte_perm(word, 0x4b000000, 0x7540 + (2 * j % 4))) - 8388608.0f;
        float high = __uint_as_float(__byte_perm(word, 0x4b000000, 0x7540 + (2 * j % 4 + 1))) - 8388608.0f;
        y[j] = pair<T>(fmaf(low, s, b), fmaf(high, s, b));
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        y[j] = affine(two(i, j));
      }
    }
  }
  __device__ float one(int i) const {
    return rounded<T>(fmaf(static_cast<float>(code<Bits>(words, i)), wide(of_bits<T>(scale)), wide(of_bits<T>(bias))));
  }

 private:
  // Two codes, one in each half of a word.
  __device__ uint32_t two(int i, int j) const {
    if constexpr (Bits == 4) {
      return (words[i] >> (4 * j)) & 0x000f000fu;
    } else {
      return code<Bits>(words, 8 * i + 2 * j) | code<Bits>(words, 8 * i + 2 * j + 1) << 16;
    }
  }
  // ORs each code into the low mantissa bits of 128 (bf16) or 1024 (f16), which gives 128 + code or 1024 + code, and
  // subtracts the constant.
  __device__ uint32_t affine(uint32_t codes) const {
    if constexpr (is_bf16<T>) {
      uint32_t shifted = codes | 0x43004300u;
      auto v = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&shifted), __bfloat162bfloat162(__float2bfloat16_rn(128.0f)));
      v = __hfma2(v, __bfloat162bfloat162(of_bits<T>(scale)), __bfloat162bfloat162(of_bits<T>(bias)));
      return *reinterpret_cast<uint32_t*>(&v);
    } else {
      uint32_t shifted = codes | 0x64006400u;
      auto v = __hsub2(*reinterpret_cast<__half2*>(&shifted), __half2half2(__float2half_rn(1024.0f)));
      v = __hfma2(v, __half2half2(of_bits<T>(scale)), __half2half2(of_bits<T>(bias)));
      return *reinterpret_cast<uint32_t*>(&v);
    }
  }
};

// 2^(byte - 127), the e8m0 format.
__device__ inline float exponent_of(uint32_t byte) {
  return byte == 0 ? __uint_as_float(0x00400000u) : __uint_as_float(byte << 23);
}
// Decodes e4m3, an 8-bit float.
__device__ inline float e4m3(uint32_t byte) {
  float v = __uint_as_float((byte & 0x80) << 24 | (byte & 0x7f) << 20) * 0x1p120f;
  return (byte & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : v;
}
// Decodes e2m1, a 4-bit float.
__device__ inline float e2m1(uint32_t nibble) {
  return __uint_as_float((nibble & 8) << 28 | (nibble & 7) << 22) * 0x1p126f;
}

// Floats of `Bits` bits (mxfp4, mxfp8, nvfp4) times the scale of their group. Scales are powers of two (e8m0) for
// groups of 32, and e4m3 for groups of 16.
template <class T, int Bits, int Group>
struct Floats {
  static constexpr Pairs pairs = Pairs::adjacent;
  static constexpr bool is_packed = true;
  static constexpr int bits = Bits;

  // Scales are the raw bytes. Converting them in `load` would wait for memory there.
  uint32_t words[Bits], scales[32 / Group];

  __device__ void load(const void* weight, const void* all, const void*, uint32_t unit, int, bool aligned) {
    load_words(static_cast<const uint32_t*>(weight) + static_cast<int64_t>(unit) * Bits, aligned, words);
#pragma unroll
    for (int i = 0; i < 32 / Group; i++) {
      scales[i] = static_cast<const uint8_t*>(all)[static_cast<int64_t>(unit) * (32 / Group) + i];
    }
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < Bits; i++) {
      words[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 32 / Group; i++) {
      scales[i] = 0;
    }
  }
  __device__ float one(int i) const {
    uint32_t v = code<Bits>(words, i);
    uint32_t byte = scales[i / Group];
    return rounded<T>((Bits == 8 ? e4m3(v) : e2m1(v)) * (Group == 16 ? e4m3(byte) : exponent_of(byte)));
  }
  __device__ void eight(int i, uint32_t (&y)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      y[j] = pair<T>(one(8 * i + 2 * j), one(8 * i + 2 * j + 1));
    }
  }
};

// Elements of T that are not quantised.
template <class T>
struct DenseCodes {
  static constexpr Pairs pairs = Pairs::adjacent;
  static constexpr bool is_packed = false;
  static constexpr int bits = 16;

  uint32_t words[16];

  __device__ void load(const void* weight, const void*, const void*, uint32_t unit, int, bool aligned) {
    load_words(reinterpret_cast<const uint32_t*>(static_cast<const T*>(weight) + static_cast<int64_t>(unit) * 32), aligned, words);
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 16; i++) {
      words[i] = 0;
    }
  }
  __device__ void eight(int i, uint32_t (&y)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      y[j] = words[4 * i + j];
    }
  }
  __device__ float one(int i) const {
    return wide(reinterpret_cast<const T*>(words)[i]);
  }
};
// Unpacked elements of 4 bits: a product adds their columns in the order of the packed ones.
template <class T>
struct HalvesCodes : DenseCodes<T> {
  static constexpr Pairs pairs = Pairs::halves;
};

} // namespace mlxrs::cuda
