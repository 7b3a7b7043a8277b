// The memory by which ranks add their arrays, shared by host and device.
#pragma once

#include <stdint.h>

namespace mlxrs::cuda {

struct PeersArgs {
  static constexpr int most = 8; // ranks
  static constexpr int blocks = 64;
  static constexpr int chunk = 16 << 10; // the most bytes of a block
  static constexpr int threads = 256;

  const void* x;
  void* y;
  int64_t bytes; // of x, a multiple of 16
  int per_block; // bytes of a block, a multiple of 16
  int rank, size;
  char* memory[most]; // of each rank
};

// What a rank's memory holds. Rank r writes to the places with its number in the memory of all others.
struct PeersMemory {
  // A block's number of calls, and the number that each rank has announced for that block. A rank's own calls are counted
  // in its own memory only.
  struct alignas(32) Round {
    uint32_t number;
  };
  Round calls[PeersArgs::blocks];
  Round announced[PeersArgs::blocks][PeersArgs::most];
  // By parity of the call: a rank that has begun a call has read all of the call before the previous one.
  char data[2][PeersArgs::most][PeersArgs::blocks][PeersArgs::chunk];
};

} // namespace mlxrs::cuda
