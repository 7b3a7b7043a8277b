// Linear attention whose state decays: the gated delta rule (Yang et al., arXiv:2412.06464), and the scan of Mamba 2 (Dao and Gu,
// arXiv:2405.21060).
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// As mlxrs_gated_delta and mlxrs_scan describe them. A key head serves as many value heads as follow each other.
struct DeltaInputs {
  // Rows are [queries | keys | values] of the delta rule, [values | keys | queries] of the scan, each head by head.
  mx::array x;
  // What the decay comes from, and for the delta rule what beta comes from. For the scan `b` is what values add to what is read.
  mx::array a, b;
  mx::array rate, bias, state, widths;

  Arrays all() const {
    return {x, a, b, rate, bias, state, widths};
  }
};

struct DeltaSettings {
  Rule rule;
  int key_heads;
  // Of a time step of the scan.
  float least = 0, most = 0;

  bool operator==(const DeltaSettings&) const = default;
};

// Outputs: what the tokens read, and the state after them.
std::optional<Arrays> delta(const DeltaInputs& in, const DeltaSettings& settings, mx::Stream s);
// Computes chunks of tokens at once, by products of matrices.
Arrays delta_plainly(const DeltaInputs& in, const DeltaSettings& settings, mx::Stream s);

} // namespace mlxrs::ops
