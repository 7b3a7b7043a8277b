#pragma once

#include <span>

#include "ops/experts/experts.h"

namespace mlxrs::ops {

// Whether the CUDA kernels support these operands.
bool experts_fit_cuda(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);

struct ExpertOperands {
  const mx::array& x;       // [.., 1, k]
  const mx::array& indices; // one for each row of x
  std::vector<std::span<const mx::array>> stacks; // weight, scales, biases of one stack, or of two for a gated product
  Packing packing;
  int gate; // -1 for a product without a gate
};
void experts_on_cuda(const ExpertOperands& of, mx::array& y, mx::Stream s);

} // namespace mlxrs::ops
