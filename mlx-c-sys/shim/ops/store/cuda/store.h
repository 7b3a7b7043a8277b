#pragma once

#include <span>

#include "ops/rope/rope.h"
#include "ops/store/store.h"

namespace mlxrs::ops {

// Whether the CUDA kernels support vectors of these sizes.
bool store_fits_cuda(int dim, int value_dim, const RowPacking& packing);
// Writes new keys and values into the buffers `out`, which have memory. `keys` are the heads, or with `heads` the
// inputs of their projection. Projections cannot be packed.
void store_on_cuda(
    std::span<const mx::array> keys, const std::optional<HeadsOptions>& heads, const mx::array& values, const mx::array& offsets,
    Arrays& out, const StoreOptions& options, mx::Stream s);

} // namespace mlxrs::ops
