#pragma once

#include "ops/conv/conv.h"

namespace mlxrs::ops {

// `in` is {x, taps} or {x, taps, bias}.
void conv_on_cuda(const Arrays& in, bool silu, mx::array& y, mx::Stream s);
// The same for ragged rows. `out` are y, and the pool if there is one, which has its memory.
void ragged_conv_on_cuda(const Arrays& in, bool silu, const Ragged& rows, Arrays& out, mx::Stream s);

} // namespace mlxrs::ops
