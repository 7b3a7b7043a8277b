// Causal convolutions of single channels, with or without silu.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// The sum over j of x[b, t + j, c] taps[j, c], plus the bias, through silu if `silu`. `in` is x, taps, and optionally a
// bias.
std::optional<mx::array> causal_conv(const Arrays& in, bool silu, mx::Stream s);
mx::array causal_conv_plainly(const Arrays& in, bool silu, mx::Stream s);

} // namespace mlxrs::ops
