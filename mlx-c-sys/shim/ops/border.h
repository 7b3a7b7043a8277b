// Conversions between the handles of the C functions and the shim's types.
#pragma once

#include <optional>

#include "core/guard.h"
#include "ops/form.h"

namespace mlxrs::ops {

inline std::optional<mx::array> optional(mlx_array a) {
  return a.ctx != nullptr ? std::make_optional(mlx_array_get_(a)) : std::nullopt;
}

} // namespace mlxrs::ops
