// Conversions of matrices for the C functions.
#pragma once

#include "linear.h"
#include "ops/border.h"

namespace mlxrs::ops {

inline Parts parts_of(const mlxrs_matrix& w) {
  return {
      mlx_array_get_(w.weight), optional(w.scales), optional(w.biases),
      {w.group_size, w.bits, w.mode != nullptr ? w.mode : "affine"}};
}

} // namespace mlxrs::ops
