// The rows of a step as an argument of kernels.
#pragma once

#include "args.h"
#include "cuda/launch.h"
#include "ops/ragged.h"

namespace mlxrs::cuda {

inline RaggedArgs rows_of(Launch& launch, const ops::Ragged& rows) {
  RaggedArgs args{};
  args.starts = launch.read_resident<int32_t>(rows.starts);
  args.count = rows.count();
  if (rows.settings.has_pool) {
    args.from = launch.read_resident<int32_t>(*rows.from);
    args.to = launch.read_resident<int32_t>(*rows.to);
    args.slots = rows.pool->shape(0);
    args.each = rows.settings.each;
  }
  return args;
}

} // namespace mlxrs::cuda
