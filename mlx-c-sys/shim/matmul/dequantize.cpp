// Dequantisation for any machine, and the choice of the instruction set.
#include "dequantize_portable.h"

namespace mlxrs::matmul {

const Dequantizer& dequantize_portable() {
  return plain;
}

const Dequantizer& dequantizer_of(Isa machine) {
  return machine >= Isa::avx512bf16 ? *dequantize_avx512bf16() : machine >= Isa::avx2 ? *dequantize_avx2() : dequantize_portable();
}

void dequantize_groups(const Dequantizer& dequantizer, const Weights& w, long row, long rows, float* scales, float* biases) {
  auto expand = [&](const void* from, float* to) {
    if (from != nullptr) {
      dequantizer.scales(w.coding, w.scale_type, from, row * w.groups(), rows * w.groups(), to);
    }
  };
  expand(w.scales, scales);
  expand(w.biases, biases);
}

} // namespace mlxrs::matmul
