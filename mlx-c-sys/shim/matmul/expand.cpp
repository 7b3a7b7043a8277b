// The plain loops for every machine.
#include "expand_plain.h"

namespace mlxrs::matmul {

const Expander& expand_portable() {
  return plain;
}

} // namespace mlxrs::matmul
