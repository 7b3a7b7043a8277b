// The kernels with AVX-512, and its conversion to bf16.
#include "table.h"

const mlxrs::fused::Kernels* mlxrs::fused::kernels_avx512bf16() {
#ifdef __AVX512BF16__
  return &table;
#else
  return nullptr;
#endif
}
