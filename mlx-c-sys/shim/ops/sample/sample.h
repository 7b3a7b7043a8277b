// Sampling: reductions over a vocabulary, and the draw of a token.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// U32: the first of the largest along the last axis; numbers only.
std::optional<mx::array> argmax(const mx::array& x, mx::Stream s);
mx::array argmax_plainly(const mx::array& x, mx::Stream s);
// Along the last axis, in f32.
std::optional<mx::array> logsumexp(const mx::array& x, mx::Stream s);
mx::array logsumexp_plainly(const mx::array& x, mx::Stream s);
// The n largest along the last axis, best first, equal ones in the order of their ids: ids (U32) and values.
std::optional<Arrays> top(const mx::array& x, int n, mx::Stream s);
Arrays top_plainly(const mx::array& x, int n, mx::Stream s);
// [B, 1]: the least of x [B, V] that is kept when the likeliest are kept while those before have less than p [B, 1].
std::optional<mx::array> nucleus(const mx::array& x, const mx::array& p, mx::Stream s);
mx::array nucleus_plainly(const mx::array& x, const mx::array& p, mx::Stream s);
// How rows of x [B, V] draw: keys, U32 [B, 2], of their noise; [B, 3] what logits are multiplied by (0: the largest is taken), p of the
// nucleus and the least logit below the largest; I32 [B]: how many of the largest take part. 1, minus infinity and V for none. All
// dense. U32 [B]; ~0 where the logits are NaN. The plain form is in mlx-core (fast/draw/plain.rs).
std::optional<mx::array> draw(
    const mx::array& x, const mx::array& keys, const mx::array& numbers, const mx::array& counts, mx::Stream s);

} // namespace mlxrs::ops
