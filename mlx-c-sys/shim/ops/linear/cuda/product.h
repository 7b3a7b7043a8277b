#pragma once

#include <span>
#include <string>

#include "ops/linear/linear.h"

namespace mlxrs::ops {

// The name of a coding in the names of kernels.
inline std::string codes_on_cuda(const Packing& packing, bool is_packed) {
  return !is_packed ? "dense" : packing.mode == "affine" ? "affine" + std::to_string(packing.bits) : packing.mode;
}

// x multiplied with several matrices of one coding: y[i] = x w[i]^T. With a gate there are two matrices and one result,
// gate(x w[0]^T) * (x w[1]^T).
struct ProductOperands {
  const mx::array& x;
  std::vector<std::span<const mx::array>> matrices; // weight, scales and biases of each matrix
  Packing packing;
  int gate; // -1 for products without a gate
};
void products_on_cuda(const ProductOperands& of, Arrays& out, mx::Stream s);

} // namespace mlxrs::ops
