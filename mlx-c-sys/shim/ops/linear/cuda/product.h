#pragma once

#include <span>
#include <string>

#include "ops/linear/linear.h"
#include "ops/norm/cuda/norm.h"

namespace mlxrs::ops {

// The name of a coding in the names of kernels.
inline std::string codes_on_cuda(const Packing& packing, bool is_packed) {
  return !is_packed ? "dense" : packing.mode == "affine" ? "affine" + std::to_string(packing.bits) : packing.mode;
}

// Whether the device multiplies by warp groups (Hopper; Blackwell has other instructions), with the kernels of batch.cuh.
bool multiplies_by_groups(mx::Stream s);

// x multiplied with several matrices of one coding: y[i] = x w[i]^T. With a gate there are two matrices and one result,
// gate(x w[0]^T) * (x w[1]^T).
struct ProductOperands {
  const mx::array& x;
  std::vector<std::span<const mx::array>> matrices; // weight, scales and biases of each matrix
  Packing packing;
  int gate; // -1 for products without a gate
};
// With a norm, x is its result `normed`, and the norm is computed first: by the product's kernel if x has one row, else by a kernel
// of its own. The bits are the same.
void products_on_cuda(const ProductOperands& of, const NormOperands* norm, Arrays& out, mx::Stream s);

} // namespace mlxrs::ops
