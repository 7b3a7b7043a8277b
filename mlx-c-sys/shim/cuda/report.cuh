// What a kernel tells the host about its input: see cuda/report.h.
#pragma once

#include "args.h"

namespace mlxrs::cuda {

// Reports an index outside of its axis. Of all reports until the host reads one, the first counts.
__device__ inline void report(const Report& r, int64_t index, int64_t size, int window) {
  volatile Finding* to = r.to;
  uint32_t round = to->round;
  if (atomicMax(r.claimed, round) >= round) {
    return;
  }
  to->operation = r.operation;
  to->index = index;
  to->size = size;
  to->window = window;
  __threadfence_system();
  to->is_set = 1;
}

} // namespace mlxrs::cuda
