// Selects the table of CPU kernels for this machine.
#include "ops/cpu/kernels.h"

namespace mlxrs::ops {

const Kernels& kernels() {
  static const Kernels& chosen = []() -> const Kernels& {
    const Kernels* best = isa() >= Isa::avx512bf16 ? kernels_avx512bf16()
        : isa() >= Isa::avx512                     ? kernels_avx512()
        : isa() >= Isa::avx2                       ? kernels_avx2()
                                                   : nullptr;
    return best != nullptr ? *best : kernels_portable();
  }();
  return chosen;
}

const AttentionKernels& attention_kernels(Type type, long dim, long value_dim, bool is_packed) {
  if (type == Type::bf16 && isa() == Isa::amx && dim % 32 == 0 && value_dim % 16 == 0) {
    if (const AttentionKernels* tiled = attention_amx(is_packed)) {
      return *tiled;
    }
  }
  const Kernels& all = kernels();
  return (is_packed ? all.packed_attention : all.attention)[static_cast<int>(type)];
}

} // namespace mlxrs::ops
