// The plain loops, compiled for AVX2.
#include "expand_plain.h"

namespace mlxrs::matmul {

const Expander* expand_avx2() {
  return &plain;
}

} // namespace mlxrs::matmul
