// Sampling: reductions over a vocabulary, and the draw of the next token.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// The index of the largest element along the last axis, U32. Of equal elements the first is chosen. NaN is skipped.
std::optional<mx::array> argmax(const mx::array& x, mx::Stream s);
mx::array argmax_plainly(const mx::array& x, mx::Stream s);
// log(sum(e^x)) along the last axis, in f32.
std::optional<mx::array> logsumexp(const mx::array& x, mx::Stream s);
mx::array logsumexp_plainly(const mx::array& x, mx::Stream s);
// The n largest elements along the last axis in descending order, equal ones by ascending id. Returns ids (U32) and
// values.
std::optional<Arrays> top(const mx::array& x, int n, mx::Stream s);
Arrays top_plainly(const mx::array& x, int n, mx::Stream s);
// The threshold of top-p, [B, 1], for x [B, V] and p [B, 1]: the smallest element that is kept when the likeliest
// tokens are kept until their probabilities reach p.
std::optional<mx::array> nucleus(const mx::array& x, const mx::array& p, mx::Stream s);
mx::array nucleus_plainly(const mx::array& x, const mx::array& p, mx::Stream s);
// Draws the next token of each row of x [B, V]. Returns two arrays U32 [B]: the ids with 0, and the ids with ~0, in
// place of rows without a valid draw (a NaN logit, or no finite logit). `keys`, U32 [B, 2], seed the noise. `numbers`,
// F32 [B, 3]: the factor of the logits (0 selects the largest), p of top-p (1: no filter), and how far below the
// largest a logit may be (minus infinity: no filter). `counts`, I32 [B]: k of top-k (V: no filter). All arrays are
// dense. The plain form is in mlx-core (fast/draw/plain.rs).
std::optional<Arrays> draw(
    const mx::array& x, const mx::array& keys, const mx::array& numbers, const mx::array& counts, mx::Stream s);

} // namespace mlxrs::ops
