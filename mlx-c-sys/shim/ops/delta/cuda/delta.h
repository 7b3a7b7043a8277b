#pragma once

#include "ops/delta/delta.h"

namespace mlxrs::ops {

// Whether the kernels take these inputs.
bool delta_fits_cuda(const DeltaInputs& in, mx::Stream s);
// `in` are those of DeltaInputs::all, `out` the tokens' outputs and the state after them.
void delta_on_cuda(const Arrays& in, Arrays& out, const DeltaSettings& settings, mx::Stream s);

} // namespace mlxrs::ops
