#pragma once

#include <span>

#include "cuda/launch.h"
#include "ops/rope/rope.h"

namespace mlxrs::ops {

// The arguments for a projection. `in` are the inputs of Projection::inputs.
cuda::HeadsArgs heads_args(cuda::Launch& launch, std::span<const mx::array> in, const HeadsOptions& options);
// Launches the kernel for heads, and for values if they are written to a buffer beside the keys. The result has type `type`.
void launch_heads(cuda::Launch& launch, cuda::HeadsArgs args, const std::string& type);
void heads_on_cuda(const Arrays& in, mx::array& y, const HeadsOptions& options, mx::Stream s);

} // namespace mlxrs::ops
