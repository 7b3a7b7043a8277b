// RMS norms, alone and fused with the addition of a residual.
#pragma once

#include "ops/derivative.h"

namespace mlxrs::ops {

// x / sqrt(mean(x^2) + eps) * weight along the last axis. The weight is optional.
std::optional<mx::array> rms_norm(
    const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s);
mx::array rms_norm_plainly(const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s);

// add_norm computes sum = residual + x, or sum = residual + rms_norm(x, inner) with an inner weight; and y =
// rms_norm(sum, outer) with an outer weight.
struct AddNormInputs {
  const mx::array &x, &residual;
  std::optional<mx::array> inner, outer;
  float eps;
};
// Returns {sum}, or {sum, y} with an outer weight.
std::optional<Arrays> add_norm(const AddNormInputs& of, mx::Stream s);
Arrays add_norm_plainly(const AddNormInputs& of, mx::Stream s);

// The gradients of rms_norm. `of` is a copy of the operation's node, because MLX owns the node itself.
Arrays rms_norm_vjp(std::shared_ptr<Node> of, float eps, const Arrays& primals, const mx::array& dy,
                    const std::vector<int>& argnums);

} // namespace mlxrs::ops
