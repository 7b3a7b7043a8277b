#pragma once

#include "ops/delta/delta.h"

namespace mlxrs::ops {

// Whether the CUDA kernels support these inputs.
bool delta_fits_cuda(const DeltaInputs& in, mx::Stream s);
// `in` are the inputs in the order of DeltaInputs::all. `out` are the tokens' outputs and the new state.
void delta_on_cuda(const Arrays& in, Arrays& out, const DeltaSettings& settings, mx::Stream s);

} // namespace mlxrs::ops
