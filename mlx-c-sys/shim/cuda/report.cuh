// How a kernel reports an index out of range (see cuda/report.h).
#pragma once

#include "args.h"

namespace mlxrs::cuda {

// Reports an index out of range. Only the first report of a slot and round is kept; a round ends
// when the host reads the reports.
__device__ inline void report(const Report& r, int64_t index, int64_t size, int window) {
  volatile Findings* all = r.to;
  uint32_t round = all->round;
  if (atomicMax(r.claimed + r.slot, round) >= round) {
    return;
  }
  volatile Finding* to = &all->of[r.slot];
  to->operation = r.operation;
  to->index = index;
  to->size = size;
  to->window = window;
  __threadfence_system();
  to->is_set = 1;
  __threadfence_system();
  all->any = 1;
}

// The number of an expert, clamped to the last expert. An index out of range (a negative one is large as unsigned) is
// reported by `check_expert`.
__device__ inline int expert_of(uint32_t index, int experts) {
  return static_cast<int>(min(index, static_cast<uint32_t>(experts - 1)));
}
__device__ inline void check_expert(const Report& r, uint32_t index, int experts) {
  if (index >= static_cast<uint32_t>(experts)) {
    report(r, static_cast<int32_t>(index), experts, 1);
  }
}

} // namespace mlxrs::cuda
