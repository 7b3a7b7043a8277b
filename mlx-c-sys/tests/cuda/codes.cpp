// Unpacking of packed weights (shim/cuda/codes.cuh), compared with codes that are read bit by bit.
#include <algorithm>
#include <array>

#include "cuda/codes.cuh"

#include "check.h"

namespace mlxrs::cuda {
namespace {

constexpr int count = 32;

template <class T>
bool is_same(T a, double b) {
  T other = T::of(b);
  return a.bits == other.bits || (std::isnan(a.value()) && std::isnan(b));
}

// `value` rounded to T, possibly through float.
template <class T>
bool is_rounded(T a, double value) {
  return is_same(a, value) || is_same(a, static_cast<float>(value));
}

template <class T>
T half_of(uint32_t word, int half) {
  return {static_cast<uint16_t>(word >> 16 * half)};
}

uint32_t read(const uint32_t* words, int bits, int i) {
  uint32_t code = 0;
  for (int b = 0; b < bits; b++) {
    int at = i * bits + b;
    code |= (words[at / 32] >> at % 32 & 1) << b;
  }
  return code;
}

// Checks single elements, and eight at a time in the order into which `arrange` brings the other
// operand.
template <class T, class Codes>
void compare(const char* name, const Codes& codes, const std::array<double, count>& values) {
  for (int i = 0; i < count; i++) {
    double one = codes.one(i);
    check(is_rounded(T::of(one), values[i]) && is_same(T::of(one), one), "%s: element %d is %g, not %g", name, i, one, values[i]);
  }
  for (int i = 0; i < count / 8; i++) {
    uint32_t got[4], order[4];
    codes.eight(i, got);
    arrange<Codes::pairs>({0x00010000, 0x00030002, 0x00050004, 0x00070006}, order);
    for (int j = 0; j < 8; j++) {
      int at = order[j / 2] >> 16 * (j % 2) & 0xffff;
      T own = half_of<T>(got[j / 2], j % 2);
      check(is_rounded(own, values[8 * i + at]), "%s: element %d of eight is %g, not %g", name, 8 * i + at, own.value(), values[8 * i + at]);
    }
  }
}

template <class T, int Bits>
void affine(const char* name) {
  Random random{Bits};
  for (int round = 0; round < 50; round++) {
    Affine<T, Bits> codes;
    for (auto& word : codes.words) {
      // Words of all zeros and of all ones are included.
      word = round == 0 ? 0 : round == 1 ? ~0u : random.next();
    }
    T scale = T::of((random.next() % 2000 - 1000.0) / 65536.0), bias = T::of((random.next() % 2000 - 1000.0) / 4096.0);
    codes.scale = scale.bits, codes.bias = bias.bits;
    std::array<double, count> values;
    for (int i = 0; i < count; i++) {
      values[i] = std::fma(read(codes.words, Bits, i), scale.value(), bias.value());
    }
    compare<T>(name, codes, values);
  }
}

// A float with `exponents` bits of exponent and `mantissa` bits of mantissa.
double float_of(uint32_t code, int exponents, int mantissa) {
  int sign = code >> (exponents + mantissa) & 1, exponent = code >> mantissa & ((1 << exponents) - 1);
  int rest = code & ((1 << mantissa) - 1), bias = (1 << (exponents - 1)) - 1;
  double x = exponent == 0 ? std::ldexp(rest, 1 - bias - mantissa) : std::ldexp(rest + (1 << mantissa), exponent - bias - mantissa);
  return sign != 0 ? -x : x;
}
double e4m3_of(uint32_t code) {
  return (code & 0x7f) == 0x7f ? NAN : float_of(code, 4, 3);
}

template <class T, int Bits, int Group>
void floats(const char* name) {
  Random random{Bits * Group};
  for (int round = 0; round < 256; round++) {
    Floats<T, Bits, Group> codes;
    for (auto& word : codes.words) {
      word = random.next();
    }
    std::array<double, count / Group> scales;
    for (int i = 0; i < count / Group; i++) {
      // Each byte occurs once as a scale; 255 is not a power of two.
      auto byte = static_cast<uint8_t>((round + i) % (Group == 16 ? 256 : 255));
      codes.scales[i] = byte;
      float scale = Group == 16 ? e4m3(byte) : exponent_of(byte);
      scales[i] = Group == 16 ? e4m3_of(byte) : std::ldexp(1.0, byte - 127);
      check(scale == scales[i] || (std::isnan(scales[i]) && std::isnan(scale)), "%s: scale %d", name, byte);
    }
    std::array<double, count> values;
    for (int i = 0; i < count; i++) {
      uint32_t code = read(codes.words, Bits, i);
      values[i] = (Bits == 8 ? e4m3_of(code) : float_of(code, 2, 1)) * scales[i / Group];
    }
    compare<T>(name, codes, values);
  }
}

template <class T>
void all() {
  affine<T, 2>("affine 2");
  affine<T, 3>("affine 3");
  affine<T, 4>("affine 4");
  affine<T, 5>("affine 5");
  affine<T, 6>("affine 6");
  affine<T, 8>("affine 8");
  floats<T, 4, 32>("mxfp4");
  floats<T, 8, 32>("mxfp8");
  floats<T, 4, 16>("nvfp4");
}

} // namespace
} // namespace mlxrs::cuda

int main() {
  mlxrs::cuda::all<mlxrs::cuda::bf16>();
  mlxrs::cuda::all<mlxrs::cuda::f16>();
  return verdict();
}
