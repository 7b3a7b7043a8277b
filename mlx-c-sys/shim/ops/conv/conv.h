// Causal depthwise convolutions with few taps, with or without SiLU.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// y[b, t, c] = sum over j of x[b, t + j, c] taps[j, c], plus bias[c], then SiLU if `silu`. x is [B, taps - 1 + L, C]
// and y is [B, L, C]. `in` is {x, taps} or {x, taps, bias}.
std::optional<mx::array> causal_conv(const Arrays& in, bool silu, mx::Stream s);
mx::array causal_conv_plainly(const Arrays& in, bool silu, mx::Stream s);

} // namespace mlxrs::ops
