#pragma once

#include <span>

#include "cuda/launch.h"
#include "ops/rope/rope.h"

namespace mlxrs::ops {

// The arguments for a projection. `in` are the inputs of Projection::inputs.
cuda::HeadsArgs heads_args(cuda::Launch& launch, std::span<const mx::array> in, const HeadsOptions& options);
// Divides the heads among warps. Returns the number of blocks for them, and for values that are written to a buffer beside
// the keys.
unsigned divide_heads(cuda::HeadsArgs& args);
constexpr int heads_threads = 128;

void heads_on_cuda(const Arrays& in, mx::array& y, const HeadsOptions& options, mx::Stream s);

} // namespace mlxrs::ops
