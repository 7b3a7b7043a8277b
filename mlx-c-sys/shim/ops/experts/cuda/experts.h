#pragma once

#include <span>

#include "ops/experts/experts.h"

namespace mlxrs::ops {

// Whether the kernels take these operands.
bool experts_fit_cuda(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);

struct ExpertOperands {
  const mx::array& x;       // [.., 1, k]
  const mx::array& indices; // the leading dimensions of x
  std::vector<std::span<const mx::array>> stacks; // the parts of one, or with a gate of two
  Packing packing;
  int gate; // -1: none
};
void experts_on_cuda(const ExpertOperands& of, mx::array& y, mx::Stream s);

} // namespace mlxrs::ops
