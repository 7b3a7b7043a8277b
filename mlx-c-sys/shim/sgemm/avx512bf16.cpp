// The kernels with VDPBF16PS: an element is a pair of bf16, and a product the sum of two.
#include "kernels.h"

#ifdef __AVX512BF16__
#include "avx512.h"

namespace mlxrs::sgemm {
namespace {

struct Pairs : Avx512 {
  static type fma(type x, type y, type z) {
    return _mm512_dpbf16_ps(z, (__m512bh)x, (__m512bh)y);
  }
};

constexpr Kernels kernels = kernels_of<Pairs>("avx512bf16");

} // namespace

const Kernels* pairs() {
  return &kernels;
}

} // namespace mlxrs::sgemm

#else

const mlxrs::sgemm::Kernels* mlxrs::sgemm::pairs() {
  return nullptr;
}

#endif
