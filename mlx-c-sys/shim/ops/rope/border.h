// Conversions of projections for the C functions.
#pragma once

#include "ops/border.h"
#include "rope.h"

namespace mlxrs::ops {

inline Projection projection_of(const mlxrs_projection& of) {
  HeadsOptions options{{of.dims, false, std::nullopt, 1.0f}, of.head_dim, of.eps};
  return {mlx_array_get_(of.x), mlx_array_get_(of.offsets), mlx_array_get_(of.freqs), optional(of.weight), options};
}

} // namespace mlxrs::ops
