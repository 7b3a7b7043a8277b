// Causal depthwise convolutions with few taps, with or without SiLU.
#pragma once

#include "ops/ragged.h"

namespace mlxrs::ops {

// y[b, t, c] = sum over j of x[b, t + j, c] taps[j, c], plus bias[c], then SiLU if `silu`. x is [B, taps - 1 + L, C]
// and y is [B, L, C]. `in` is {x, taps} or {x, taps, bias}.
std::optional<mx::array> causal_conv(const Arrays& in, bool silu, mx::Stream s);
mx::array causal_conv_plainly(const Arrays& in, bool silu, mx::Stream s);

// The same for ragged rows, see mlxrs_fast_ragged_conv: x and y are [1, T, C]. The outputs are y, and the pool if there
// is one.
std::optional<Arrays> ragged_conv(const Arrays& in, bool silu, const Ragged& rows, mx::Stream s);
Arrays ragged_conv_plainly(const Arrays& in, bool silu, const Ragged& rows, mx::Stream s);

// The taps that kernels support.
constexpr int most_taps = 8;
// The channels of one token that a CPU task computes.
constexpr long conv_piece = 2048;

} // namespace mlxrs::ops
