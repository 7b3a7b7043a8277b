#pragma once

#include "ops/conv/conv.h"

namespace mlxrs::ops {

// `in` are x, taps, and optionally a bias.
void conv_on_cuda(const Arrays& in, bool silu, mx::array& y, mx::Stream s);

} // namespace mlxrs::ops
