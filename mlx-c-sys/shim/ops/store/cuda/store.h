#pragma once

#include <span>

#include "cuda/launch.h"
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


// The rows of a flat step with pages.
struct CudaRows {
  const mx::array &starts, &lens, &tables;
};
// Sets `args` for the rows, whose positions are read by `launch`.
void take_rows(cuda::Launch& launch, cuda::FlatArgs& args, const CudaRows& rows, int most);
// The new keys [1, K, T, D] of a flat step, or the projection that becomes them; values, unless there are none; and the
// projection of queries, if the kernel computes their heads too.
struct PagedOnCuda {
  const mx::array* keys; // null with a projection
  ProjectionInputs projection, queries;
  const mx::array* values; // null for latents
  CudaRows rows;
};
// Writes them into the pools `out`, which have memory. With queries it allocates the array after the pools.
void paged_store_on_cuda(const PagedOnCuda& of, Arrays& out, size_t pools, const RowPacking& packing, mx::Stream s);

} // namespace mlxrs::ops
