#pragma once

#include "ops/delta/delta.h"

namespace mlxrs::ops {

// Whether the CUDA kernels support these inputs.
bool delta_fits_cuda(const DeltaInputs& in, mx::Stream s);
// `in` are the inputs in the order of DeltaInputs::all. `out` are the tokens' outputs and the new state.
void delta_on_cuda(const Arrays& in, Arrays& out, const DeltaSettings& settings, mx::Stream s);

// The same for ragged rows. `out` are the tokens' outputs, and the pool if there is one, which has its memory.
bool ragged_delta_fits_cuda(const RaggedDeltaInputs& in, mx::Stream s);
void ragged_delta_on_cuda(const RaggedDeltaInputs& in, Arrays& out, const DeltaSettings& settings, mx::Stream s);

} // namespace mlxrs::ops
