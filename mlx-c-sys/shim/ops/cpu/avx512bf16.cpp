// The kernels with AVX-512 and its bf16 conversions.
#include "ops/cpu/table.h"

const mlxrs::ops::Kernels* mlxrs::ops::kernels_avx512bf16() {
#ifdef __AVX512BF16__
  return &table;
#else
  return nullptr;
#endif
}
