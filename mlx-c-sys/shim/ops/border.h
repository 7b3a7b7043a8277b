// Conversions between the handles of the C functions and the shim's types.
#pragma once

#include <optional>

#include "core/guard.h"
#include "mlxrs_fast.h"
#include "ops/form.h"
#include "ops/pages.h"

namespace mlxrs::ops {

inline std::optional<mx::array> optional(mlx_array a) {
  return a.ctx != nullptr ? std::make_optional(mlx_array_get_(a)) : std::nullopt;
}

inline FlatRows rows_of(const mlxrs_pages& pages) {
  return {mlx_array_get_(pages.starts), mlx_array_get_(pages.lens), mlx_array_get_(pages.tables)};
}

} // namespace mlxrs::ops
