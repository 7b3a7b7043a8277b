// Products with the norm of x, and the norm that comes before them.
#pragma once

#include <span>

#include "ops/gated/gated.h"
#include "ops/norm/norm.h"

namespace mlxrs::ops {

// The norm of x, or of the sum residual + x or residual + rms_norm(x, inner), multiplied with matrices. With a gate there are two
// matrices and one product, that of gated_linear.
struct NormLinearInputs {
  mx::array x;
  std::optional<mx::array> residual, inner, weight;
  float eps;
  std::vector<Parts> matrices;
  std::optional<Gate> gate;
};
// Returns the sum (x without a residual), the norm, and then the products.
std::optional<Arrays> norm_linear(const NormLinearInputs& of, mx::Stream s);
// The same as a norm and products of their own, each in its best form.
Arrays norm_linear_apart(const NormLinearInputs& of, mx::Stream s);

} // namespace mlxrs::ops
