// The kernels with AVX2, FMA and F16C.
#include "table.h"

const mlxrs::fused::Kernels* mlxrs::fused::kernels_avx2() {
#ifdef __AVX2__
  return &table;
#else
  return nullptr;
#endif
}
