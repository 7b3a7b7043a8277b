#pragma once

#include <span>
#include <string>

#include "ops/linear/linear.h"

namespace mlxrs::ops {

// The name that kernels have for a coding.
inline std::string codes_on_cuda(const Packing& packing, bool is_packed) {
  return !is_packed ? "dense" : packing.mode == "affine" ? "affine" + std::to_string(packing.bits) : packing.mode;
}

// The products of x with some matrices of one coding, each with its own y; or, with a gate, what it makes of the products with two
// matrices.
struct ProductOperands {
  const mx::array& x;
  std::vector<std::span<const mx::array>> matrices; // the parts of each
  Packing packing;
  int gate; // -1: none
};
void products_on_cuda(const ProductOperands& of, Arrays& out, mx::Stream s);

} // namespace mlxrs::ops
