// The kernels with AVX-512.
#include "ops/cpu/table.h"

const mlxrs::ops::Kernels* mlxrs::ops::kernels_avx512() {
#ifdef __AVX512BW__
  return &table;
#else
  return nullptr;
#endif
}
