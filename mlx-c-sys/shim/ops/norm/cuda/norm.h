#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// The operands of add_norm (ops/norm/norm.h). Pointers are null for operands that do not exist.
struct NormOperands {
  const mx::array& x;
  const mx::array *residual, *inner, *outer;
  mx::array *sum, *normed;
};
void add_norm_on_cuda(const NormOperands& of, float eps, mx::Stream s);

} // namespace mlxrs::ops
