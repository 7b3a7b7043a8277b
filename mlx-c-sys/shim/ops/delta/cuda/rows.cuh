// The rows and slots of a step in kernels (RaggedArgs). What is out of range is ignored.
#pragma once

#include "ops/delta/cuda/args.h"

namespace mlxrs::cuda {

// The first token of a row; for `row` = count, the first token of no row.
__device__ inline int row_start(const RaggedArgs& a, int row, int tokens) {
  return min(max(a.starts[row], 0), tokens);
}
__device__ inline int slot_inside(const RaggedArgs& a, int slot) {
  return slot < a.slots ? slot : -1;
}
// The slot with the state before the row's tokens, or less than 0.
__device__ inline int slot_before(const RaggedArgs& a, int row) {
  return a.from == nullptr ? -1 : slot_inside(a, a.from[row]);
}
// The slot that gets the state after a token, or less than 0.
__device__ inline int slot_after(const RaggedArgs& a, int row, int64_t token, bool is_last) {
  return a.to == nullptr || !(a.each || is_last) ? -1 : slot_inside(a, a.to[a.each ? token : row]);
}

} // namespace mlxrs::cuda
