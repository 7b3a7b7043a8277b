// The gated delta rule (Yang et al., arXiv:2412.06464): a linear attention whose state decays and corrects itself.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// As mlxrs_gated_delta describes them. Rows of `qkv` are [queries | keys | values], each head by head; a key head serves as many
// value heads as follow each other.
struct DeltaInputs {
  mx::array qkv, a, b, rate, bias, state, widths;

  Arrays all() const {
    return {qkv, a, b, rate, bias, state, widths};
  }
};

// Outputs: what the tokens read, and the state after them.
std::optional<Arrays> gated_delta(const DeltaInputs& in, int key_heads, mx::Stream s);
// Computes chunks of tokens at once, by products of matrices.
Arrays gated_delta_plainly(const DeltaInputs& in, int key_heads, mx::Stream s);

} // namespace mlxrs::ops
