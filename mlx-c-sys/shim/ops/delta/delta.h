// Linear attention whose state decays: the gated delta rule (Yang et al., arXiv:2412.06464), and the scan of Mamba 2 (Dao and Gu,
// arXiv:2405.21060).
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// The inputs of mlxrs_gated_delta and mlxrs_scan. A key head serves several consecutive value heads.
struct DeltaInputs {
  // A row is [queries
  // keys
  // values] for the delta rule and [values
  // keys
  // queries] for the scan, each head by head.
  mx::array x;
  // `a` gives the decay, and `b` gives beta of the delta rule. For the scan, `b` is the factor with which values add to
  // the output.
  mx::array a, b;
  mx::array rate, bias, state, widths;

  Arrays all() const {
    return {x, a, b, rate, bias, state, widths};
  }
};

struct DeltaSettings {
  Rule rule;
  int key_heads;
  // The bounds of the scan's time step.
  float least = 0, most = 0;

  bool operator==(const DeltaSettings&) const = default;
};

// Outputs: the tokens' outputs, and the state after them.
std::optional<Arrays> delta(const DeltaInputs& in, const DeltaSettings& settings, mx::Stream s);
// Computes chunks of tokens at once, by matrix products.
Arrays delta_plainly(const DeltaInputs& in, const DeltaSettings& settings, mx::Stream s);

} // namespace mlxrs::ops
