// The kernels for any machine, with vectors of four: SSE2 on x86-64, NEON on Arm.
#include "table.h"

const mlxrs::fused::Kernels& mlxrs::fused::kernels_portable() {
  return table;
}
