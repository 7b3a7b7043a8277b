#pragma once

#include "ops/conv/conv.h"

namespace mlxrs::ops {

// `in` is {x, taps} or {x, taps, bias}.
void conv_on_cuda(const Arrays& in, bool silu, mx::array& y, mx::Stream s);

} // namespace mlxrs::ops
