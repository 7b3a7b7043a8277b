// Exchanges of the GPUs of one machine: what the host and the kernels of peers.cu share.
#pragma once

#include <stdint.h>

namespace mlxrs::cuda {

constexpr int most_peers = 8, peer_threads = 256;

// A message is divided into units of 8 bytes. In memory that peers write, a unit takes 16 bytes.
struct PeerArgs {
  // The memory of each rank, [2, ranks, capacity] units. The exchanges take turns with the first two parts.
  void* memory[most_peers];
  // The number of the last exchange, and a counter of blocks, which ends at zero.
  uint32_t* clock;
  const void* x;
  void* y; // may be x in sums
  int64_t units, capacity;
  int rank, ranks;
};

} // namespace mlxrs::cuda
