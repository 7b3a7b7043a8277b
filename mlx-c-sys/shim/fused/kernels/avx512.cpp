// The kernels with AVX-512.
#include "table.h"

const mlxrs::fused::Kernels* mlxrs::fused::kernels_avx512() {
#ifdef __AVX512BW__
  return &table;
#else
  return nullptr;
#endif
}
