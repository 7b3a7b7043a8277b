#pragma once

#include <span>

#include "cuda/launch.h"
#include "ops/rope/rope.h"

namespace mlxrs::ops {

// The kernels' arguments for a projection, whose inputs are those of Projection::inputs.
cuda::HeadsArgs heads_args(cuda::Launch& launch, std::span<const mx::array> in, const HeadsOptions& options);
void heads_on_cuda(const Arrays& in, mx::array& y, const HeadsOptions& options, mx::Stream s);

} // namespace mlxrs::ops
