// Causal convolutions of single channels, with silu.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// silu of the sum of x[b, t + j, c] taps[j, c] over j.
std::optional<mx::array> causal_conv(const mx::array& x, const mx::array& taps, mx::Stream s);
mx::array causal_conv_plainly(const mx::array& x, const mx::array& taps, mx::Stream s);

} // namespace mlxrs::ops
