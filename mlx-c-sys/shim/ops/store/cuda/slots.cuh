// Where a step's tokens go in the buffers of a KV cache.
#pragma once

#include "cuda/args.h"

namespace mlxrs::cuda {

// The slot of a token in a buffer, or -1: as `Slots` of ops/store/node.cpp.
__device__ inline int slot_of(const HeadsArgs& a, int row, int token) {
  // Not from the L1 cache: the kernel may run beside the one before it.
  int position = __ldcg(a.offsets + row * a.offset_step) + token;
  if (a.ring) {
    return token + a.slots < a.tokens ? -1 : (position % a.slots + a.slots) % a.slots;
  }
  return position >= 0 && position < a.slots ? position : -1;
}

} // namespace mlxrs::cuda
