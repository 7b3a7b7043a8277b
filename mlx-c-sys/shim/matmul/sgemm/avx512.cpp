// The sgemm kernels with AVX-512F.
#include "kernels.h"

#ifdef __AVX512F__
#include "avx512.h"

namespace mlxrs::sgemm {
namespace {

constexpr Kernels kernels = kernels_of<Avx512>("avx512");

} // namespace

const Kernels* avx512() {
  return &kernels;
}

} // namespace mlxrs::sgemm

#else

const mlxrs::sgemm::Kernels* mlxrs::sgemm::avx512() {
  return nullptr;
}

#endif
