// Sampling: reductions over a vocabulary, and the draw of a token.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// The index of the largest element along the last axis, the first of equal ones, U32. NaN is skipped.
std::optional<mx::array> argmax(const mx::array& x, mx::Stream s);
mx::array argmax_plainly(const mx::array& x, mx::Stream s);
// Along the last axis, in f32.
std::optional<mx::array> logsumexp(const mx::array& x, mx::Stream s);
mx::array logsumexp_plainly(const mx::array& x, mx::Stream s);
// The n largest elements along the last axis, best first, equal ones in the order of their ids: ids (U32) and values.
std::optional<Arrays> top(const mx::array& x, int n, mx::Stream s);
Arrays top_plainly(const mx::array& x, int n, mx::Stream s);
// The threshold of top-p, [B, 1]: the least element of x [B, V] that is kept when the likeliest are kept until they
// reach p [B, 1].
std::optional<mx::array> nucleus(const mx::array& x, const mx::array& p, mx::Stream s);
mx::array nucleus_plainly(const mx::array& x, const mx::array& p, mx::Stream s);
// The next token of each row of x [B, V], U32 [B], twice: with 0, and with ~0, where a logit is NaN or none is finite. `keys`, U32 [B, 2], seed the
// noise. `numbers`, F32 [B, 3]: the factor of the logits (0 takes the largest), p of top-p (1: no filter), and how far
// below the largest a logit may be (minus infinity: no filter). `counts`, I32 [B]: k of top-k (V: no filter). All
// arrays are dense. The plain form is in mlx-core (fast/draw/plain.rs).
std::optional<Arrays> draw(
    const mx::array& x, const mx::array& keys, const mx::array& numbers, const mx::array& counts, mx::Stream s);

} // namespace mlxrs::ops
