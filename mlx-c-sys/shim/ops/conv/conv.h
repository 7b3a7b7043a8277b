// Causal convolutions of single channels, with or without silu.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// The sum of x[b, t + j, c] taps[j, c] over j, plus the bias, through silu if asked for. `in` is x, taps, and a bias where there is one.
std::optional<mx::array> causal_conv(const Arrays& in, bool silu, mx::Stream s);
mx::array causal_conv_plainly(const Arrays& in, bool silu, mx::Stream s);

} // namespace mlxrs::ops
