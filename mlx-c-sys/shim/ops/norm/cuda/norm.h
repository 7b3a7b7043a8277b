#pragma once

#include "cuda/launch.h"
#include "ops/node.h"

namespace mlxrs::ops {

// The operands of add_norm (ops/norm/norm.h). Pointers are null for operands that do not exist.
struct NormOperands {
  const mx::array& x;
  const mx::array *residual, *inner, *outer;
  mx::array *sum, *normed;
  float eps;
};
void add_norm_on_cuda(const NormOperands& of, mx::Stream s);
// Whether a product with one row of x can compute this norm of x (`normed` kernels).
bool joins_product(const NormOperands& of);
// The arguments of a kernel that computes this norm. Allocates the results.
cuda::NormArgs norm_args(cuda::Launch& launch, const NormOperands& of, mx::Stream s);

} // namespace mlxrs::ops
