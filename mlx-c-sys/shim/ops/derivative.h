// The base class of nodes that compute derivatives.
#pragma once

#include <algorithm>
#include <memory>

#include "ops/node.h"

namespace mlxrs::ops {

// Inputs: the operation's inputs, then the cotangent of its result. Outputs: the cotangents of the operation's first
// `count` inputs.
class Derivative : public Node {
 public:
  Derivative(mx::Stream s, std::shared_ptr<Node> of, size_t count) : Node(s), of_(std::move(of)), count_(count) {}

  Arrays plain_all(const Arrays& in) override {
    Arrays first(in.begin(), in.begin() + count_);
    auto operation = [&](const Arrays& some) {
      Arrays all = some;
      all.insert(all.end(), in.begin() + count_, in.end() - 1);
      return Arrays{of_->plain(all)};
    };
    return mx::vjp(operation, first, {in.back()}).second;
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const Derivative&>(other);
    return count_ == that.count_ && of_->is_equivalent(*that.of_);
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    std::vector<mx::Shape> shapes;
    for (size_t i = 0; i < count_; i++) {
      shapes.push_back(in[i].shape());
    }
    return shapes;
  }

  // Applies the node to `inputs`: f32 for CPU kernels. Each cotangent is computed in the dtype of its input. Returns the
  // cotangents of the inputs in `argnums`, in the dtypes of `primals`.
  static Arrays make(
      std::shared_ptr<Derivative> node, Arrays inputs, const Arrays& primals, const std::vector<int>& argnums) {
    auto shapes = node->output_shapes(inputs);
    auto s = node->stream();
    std::vector<mx::Dtype> dtypes;
    for (size_t i = 0; i < shapes.size(); i++) {
      dtypes.push_back(inputs[i].dtype());
    }
    auto all = mx::array::make_arrays(std::move(shapes), dtypes, node, inputs);
    Arrays wanted;
    for (int i : argnums) {
      wanted.push_back(mx::astype(all[i], primals[i].dtype(), s));
    }
    return wanted;
  }

 private:
  std::shared_ptr<Node> of_;
  size_t count_;
};

// Whether only the first `count` inputs are differentiated, and all dtypes are those of our kernels.
inline bool has_derivative(
    const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, size_t count) {
  auto first = primals.begin(), end = primals.begin() + count;
  return std::all_of(argnums.begin(), argnums.end(), [&](int i) { return static_cast<size_t>(i) < count; }) &&
      std::all_of(first, end, [](const mx::array& x) { return is_float(x.dtype()); }) && is_float(cotangents[0].dtype());
}

// x as f32 and dense, which derivatives require.
inline mx::array widened(const mx::array& x, mx::Stream s) {
  return mx::contiguous(mx::astype(x, mx::float32, s), false, s);
}

} // namespace mlxrs::ops
