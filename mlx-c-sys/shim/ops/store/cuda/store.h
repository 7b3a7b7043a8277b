#pragma once

#include <span>

#include "ops/rope/rope.h"
#include "ops/store/store.h"

namespace mlxrs::ops {

// Whether the CUDA kernels support vectors of these sizes.
bool store_fits_cuda(int dim, int value_dim, const RowPacking& packing);
// Writes new keys and values into the buffers `out`, which have memory.
void store_on_cuda(
    const mx::array& keys, const mx::array& values, const mx::array& offsets, Arrays& out, const StoreOptions& options, mx::Stream s);

// The inputs of a projection, and its options.
struct ProjectionInputs {
  std::span<const mx::array> in;
  HeadsOptions options;
};
// The same for the heads of a projection of keys, which are not packed. With inputs of queries, the kernel also computes their
// heads and allocates out[2] for them.
void store_heads_on_cuda(
    const ProjectionInputs& keys, const ProjectionInputs& queries, const mx::array& values, Arrays& out, const StoreOptions& options,
    mx::Stream s);

} // namespace mlxrs::ops
