// Cross entropy of logits.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// logsumexp(logits) - logits[target] along the last axis. Our kernels support f32.
std::optional<mx::array> cross_entropy(const mx::array& logits, const mx::array& targets, mx::Stream s);
mx::array cross_entropy_plainly(const mx::array& logits, const mx::array& targets, mx::Stream s);

} // namespace mlxrs::ops
