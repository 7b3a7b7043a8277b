#pragma once

#include <span>

#include "ops/rope/rope.h"
#include "ops/store/store.h"

namespace mlxrs::ops {

// Writes new keys and values into the buffers `out`, which have memory. `keys` are heads, or with `options` the inputs of their projection.
void store_on_cuda(
    std::span<const mx::array> keys, const std::optional<HeadsOptions>& options, const mx::array& values, const mx::array& offsets,
    Arrays& out, bool ring, mx::Stream s);

} // namespace mlxrs::ops
