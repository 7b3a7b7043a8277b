// Products with dense or quantised matrices.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/node.h"

namespace mlxrs::ops {

// The quantisation of a matrix, in MLX's terms.
struct Packing {
  int group, bits;
  std::string mode;

  bool operator==(const Packing&) const = default;
};

// A matrix [.., out, in], or a stack of matrices. It is quantised if it has scales.
struct Parts {
  mx::array weight;
  std::optional<mx::array> scales, biases;
  Packing packing;

  // The matrix whose parts are the node's inputs from number `first` on.
  static Parts of(const Arrays& inputs, size_t first, const Packing& packing) {
    auto part = [&](size_t i) { return i < inputs.size() ? std::make_optional(inputs[i]) : std::nullopt; };
    return {inputs[first], part(first + 1), part(first + 2), packing};
  }
  mx::array in_f32(mx::Stream s) const {
    if (!scales) {
      return mx::astype(weight, mx::float32, s);
    }
    return mx::dequantize(
        weight, *scales, biases, packing.group, packing.bits, packing.mode, std::nullopt, mx::float32, s);
  }
};

// x w^T as one node. `linear` returns nothing for operands that our kernels do not support; `linear_plainly` uses MLX's
// operations.
std::optional<mx::array> linear(const mx::array& x, const Parts& w, mx::Stream s);
mx::array linear_plainly(const mx::array& x, const Parts& w, mx::Stream s);

// The products of x with several matrices as one node: x is packed once, and threads synchronise once. Returns nothing
// for f32, whose products are computed by sgemm, and for matrices of different codings.
std::optional<Arrays> linear_many(const mx::array& x, const std::vector<Parts>& ws, mx::Stream s);

// The products in the form (node or plain) that the stream runs.
mx::array linear_in_form(const mx::array& x, const Parts& w, mx::Stream s);
Arrays linear_many_in_form(const mx::array& x, const std::vector<Parts>& ws, mx::Stream s);

// Whether MLX 0.32.4 computes a wrong product of an x of this dtype with a quantised matrix on the stream. Three faults
// on GPUs: if a row has a single group (for example 64 columns in groups of 64), products are wrong without an error
// (seen with 4 and 8 bits, mxfp4, and with experts); 1-bit matrices have no kernels, and results stay unwritten; on
// NVIDIA GPUs, products in F32 read from addresses that are not multiples of 16.
inline bool is_wrong_on_gpus(const Parts& w, mx::Dtype dtype, mx::Stream s) {
#ifdef MLXRS_CUDA
  bool is_misaligned = dtype == mx::float32;
#else
  bool is_misaligned = false;
#endif
  return s.device == mx::Device::gpu && (is_misaligned || w.scales->shape(-1) == 1 || w.packing.bits == 1);
}

// The unpacked elements of a quantised matrix, or of a stack of them.
inline mx::array dequantized(const Parts& w, mx::Dtype dtype, mx::Stream s) {
  const auto& [group, bits, mode] = w.packing;
  auto on = s.device == mx::Device::gpu && bits == 1 ? mx::default_stream(mx::Device::cpu) : s;
  return mx::dequantize(w.weight, *w.scales, w.biases, group, bits, mode, std::nullopt, dtype, on);
}

} // namespace mlxrs::ops
