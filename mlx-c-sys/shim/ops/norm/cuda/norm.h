#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// As AddNormInputs of ops/norm/norm.h. Null: there is none.
struct NormOperands {
  const mx::array& x;
  const mx::array *residual, *inner, *outer;
  mx::array *sum, *normed;
};
void add_norm_on_cuda(const NormOperands& of, float eps, mx::Stream s);

} // namespace mlxrs::ops
