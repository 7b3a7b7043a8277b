// Conversions of gates for the C functions.
#pragma once

#include "gated.h"

namespace mlxrs::ops {

inline Gate gate_of(mlxrs_gate kind) {
  if (kind != MLXRS_GATE_SILU && kind != MLXRS_GATE_GELU_TANH) {
    throw std::invalid_argument("unknown gate " + std::to_string(static_cast<int>(kind)));
  }
  return static_cast<Gate>(kind);
}

} // namespace mlxrs::ops
