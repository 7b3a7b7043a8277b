// Linear attention with a decaying state: the gated delta rule (Yang et al., arXiv:2412.06464), and the scan of Mamba 2
// (Dao and Gu, arXiv:2405.21060). The formulas are at mlxrs_gated_delta and mlxrs_scan (mlxrs_recurrent.h).
#pragma once

#include "ops/ragged.h"

namespace mlxrs::ops {

// The inputs of mlxrs_gated_delta and mlxrs_scan. Each key head serves several consecutive value heads.
struct DeltaInputs {
  // [B, L, W]. The last axis is [queries, keys, values] for the delta rule and [values, keys, queries] for the scan,
  // each part head by head.
  mx::array x;
  // `a` determines the decay. `b` determines beta of the delta rule; for the scan, `b` [heads] is the factor with which
  // a value is added to the output.
  mx::array a, b;
  mx::array rate, bias, state, widths;

  Arrays all() const {
    return {x, a, b, rate, bias, state, widths};
  }
};

struct DeltaSettings {
  Rule rule;
  int key_heads;
  // The bounds of the scan's time step. For the delta rule `most` is the largest beta.
  float least = 0, most = 0;
  // The delta rule: 0, or the negative number above which the logarithm of a decay stays.
  float bound = 0;

  bool operator==(const DeltaSettings&) const = default;
};

// Outputs: the tokens' outputs [B, L, heads value_dim], and the state after them.
std::optional<Arrays> delta(const DeltaInputs& in, const DeltaSettings& settings, mx::Stream s);
// Computes chunks of up to 64 tokens (16 with a decay for each channel) by matrix products.
Arrays delta_plainly(const DeltaInputs& in, const DeltaSettings& settings, mx::Stream s);

// The inputs of mlxrs_fast_ragged_delta and mlxrs_fast_ragged_scan: those of DeltaInputs with B = 1 and without a state.
struct RaggedDeltaInputs {
  mx::array x, a, b, rate, bias;
  int heads, dim;
  Ragged rows;

  // A state: [heads, value_dim, dim].
  mx::Shape state(int key_heads) const {
    return {heads, (x.shape(2) - 2 * key_heads * dim) / heads, dim};
  }
};
// Outputs: the tokens' outputs [1, T, heads value_dim], and the pool if there is one.
std::optional<Arrays> ragged_delta(const RaggedDeltaInputs& in, const DeltaSettings& settings, mx::Stream s);
// Gives each row a row of the dense form.
Arrays ragged_delta_plainly(const RaggedDeltaInputs& in, const DeltaSettings& settings, mx::Stream s);

} // namespace mlxrs::ops
