// The plain loops for every machine.
#include "expand_plain.h"

namespace mlxrs::matmul {

const Expander& expand_portable() {
  return plain;
}

const Expander& expander_of(Isa machine) {
  return machine >= Isa::avx512bf16 ? *expand_avx512() : machine >= Isa::avx2 ? *expand_avx2() : expand_portable();
}

} // namespace mlxrs::matmul
