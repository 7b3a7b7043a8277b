// Products with matrices that are dense or quantised.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/node.h"

namespace mlxrs::ops {

// The packing of a quantised matrix, in MLX's terms.
struct Packing {
  int group, bits;
  std::string mode;

  bool operator==(const Packing&) const = default;
};

// A matrix [.., out, in], or several. It is quantised if it has scales.
struct Parts {
  mx::array weight;
  std::optional<mx::array> scales, biases;
  Packing packing;

  // The matrix whose parts are a node's inputs from `first` to the last.
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

// x @ w.T as one node.
std::optional<mx::array> linear(const mx::array& x, const Parts& w, mx::Stream s);
mx::array linear_plainly(const mx::array& x, const Parts& w, mx::Stream s);

// The products of x with several matrices as one node: x is packed once, and threads synchronise once. Returns nothing
// for f32, which sgemm may multiply, and for matrices of different codings.
std::optional<Arrays> linear_many(const mx::array& x, const std::vector<Parts>& ws, mx::Stream s);

// x @ w.T in the form of the stream.
mx::array linear_in_form(const mx::array& x, const Parts& w, mx::Stream s);
Arrays linear_many_in_form(const mx::array& x, const std::vector<Parts>& ws, mx::Stream s);

// Whether MLX 0.32.4's product of an x of this dtype with a quantised matrix is wrong on a stream. On GPUs it is, without an error, where a row has a single
// group (64 columns in groups of 64, say): seen with 4 and 8 bits, mxfp4, and with experts. There are no kernels for 1 bit, and results stay unwritten. On
// NVIDIA GPUs products in F32 read from addresses that are no multiples of 16.
inline bool is_wrong_on_gpus(const Parts& w, mx::Dtype dtype, mx::Stream s) {
#ifdef MLXRS_CUDA
  bool is_misaligned = dtype == mx::float32;
#else
  bool is_misaligned = false;
#endif
  return s.device == mx::Device::gpu && (is_misaligned || w.scales->shape(-1) == 1 || w.packing.bits == 1);
}

// The elements of a quantised matrix, or of several.
inline mx::array dequantized(const Parts& w, mx::Dtype dtype, mx::Stream s) {
  const auto& [group, bits, mode] = w.packing;
  auto on = s.device == mx::Device::gpu && bits == 1 ? mx::default_stream(mx::Device::cpu) : s;
  return mx::dequantize(w.weight, *w.scales, w.biases, group, bits, mode, std::nullopt, dtype, on);
}

} // namespace mlxrs::ops
