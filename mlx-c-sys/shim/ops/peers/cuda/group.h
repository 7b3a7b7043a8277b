// Sums and gathers of small messages over the memory of peers, for the ranks of NCCL.
#pragma once

#include <cstdint>

#include "mlx/distributed/distributed.h"

namespace mlxrs::cuda {

// Allocates this rank's memory, at the first call, and writes a handle of 64 bytes by which other processes map it. Throws if
// there is no memory or no handle.
void offer_to_peers(int ranks, uint8_t* handle);
// Maps the memory of the other ranks, whose handles are given in the order of the ranks.
void map_peers(int rank, int ranks, const uint8_t* handles);
// The group with sums and gathers over the memory that map_peers has mapped, on every rank.
mlx::core::distributed::Group with_peers(const mlx::core::distributed::Group& nccl);

} // namespace mlxrs::cuda
