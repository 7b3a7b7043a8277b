// The kernels for any machine, with vectors of four floats: SSE2 on x86-64, NEON on Arm.
#include "ops/cpu/table.h"

const mlxrs::ops::Kernels& mlxrs::ops::kernels_portable() {
  return table;
}
