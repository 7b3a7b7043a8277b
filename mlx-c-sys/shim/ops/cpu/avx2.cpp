// The kernels with AVX2, FMA and F16C.
#include "ops/cpu/table.h"

const mlxrs::ops::Kernels* mlxrs::ops::kernels_avx2() {
#ifdef __AVX2__
  return &table;
#else
  return nullptr;
#endif
}
