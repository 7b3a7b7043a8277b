// RMS norms, alone and fused with the addition of a residual.
#pragma once

#include "ops/derivative.h"

#ifdef MLXRS_CUDA
#include "cuda/norm.h"
#endif

namespace mlxrs::ops {

// x / sqrt(mean(x^2) + eps) * weight along the last axis. The weight is optional.
std::optional<mx::array> rms_norm(
    const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s);
mx::array rms_norm_plainly(const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s);
mx::array rms_norm_in_form(const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s);

// add_norm computes sum = residual + x, or sum = residual + rms_norm(x, inner) with an inner weight; and y =
// rms_norm(sum, outer) with an outer weight.
struct AddNormInputs {
  const mx::array &x, &residual;
  std::optional<mx::array> inner, outer;
  float eps;
};
// Returns {sum}, or {sum, y} with an outer weight.
std::optional<Arrays> add_norm(const AddNormInputs& of, mx::Stream s);
Arrays add_norm_plainly(const AddNormInputs& of, mx::Stream s);
Arrays add_norm_in_form(const AddNormInputs& of, mx::Stream s);

// The node of a norm, whose last output is the norm. Nodes that compute a norm before something else contain one.
class NormNode : public Node {
 public:
  using Node::Node;

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    add_norm_on_cuda(operands(in, out), stream());
  }
  virtual NormOperands operands(const Arrays& in, Arrays& out) const = 0;
#endif
};
// A node and its inputs. It has two outputs if it also computes a sum.
struct NormParts {
  std::shared_ptr<NormNode> node;
  Arrays inputs;
};
// The nodes of rms_norm and, for add_norm with an outer weight, of both results. Returns nothing for inputs that our kernels do
// not support.
std::optional<NormParts> rms_norm_node(const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s);
std::optional<NormParts> add_norm_node(const AddNormInputs& of, mx::Stream s);

// The gradients of rms_norm. `of` is a copy of the operation's node, because MLX owns the node itself.
Arrays rms_norm_vjp(std::shared_ptr<Node> of, float eps, const Arrays& primals, const mx::array& dy,
                    const std::vector<int>& argnums);

} // namespace mlxrs::ops
