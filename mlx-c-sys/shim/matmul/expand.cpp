// The plain loops for every machine.
#include "expand_plain.h"

namespace mlxrs::matmul {

const Expander& expand_portable() {
  return plain;
}

const Expander& expander_of(Isa machine) {
  return machine >= Isa::avx512bf16 ? *expand_avx512() : machine >= Isa::avx2 ? *expand_avx2() : expand_portable();
}

void expand_groups(const Expander& expander, const Weights& w, long row, long rows, float* scales, float* biases) {
  auto expand = [&](const void* from, float* to) {
    if (from != nullptr) {
      expander.scales(w.coding, w.scale_type, from, row * w.groups(), rows * w.groups(), to);
    }
  };
  expand(w.scales, scales);
  expand(w.biases, biases);
}

} // namespace mlxrs::matmul
