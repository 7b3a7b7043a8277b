// The node that computes a norm and the products that read it.
#include "norm_linear.h"

#ifndef __APPLE__

#include <typeinfo>

#include "ops/linear/product.h"

namespace mlxrs::ops {
namespace {

// Inputs: those of the norm, then the parts of each matrix. Outputs: those of the norm, then the products.
class NormProducts : public Node {
 public:
  NormProducts(mx::Stream s, std::shared_ptr<NormNode> norm, size_t norm_inputs, std::shared_ptr<ProductNode> products)
      : Node(s), norm_(std::move(norm)), norm_inputs_(norm_inputs), products_(std::move(products)) {}

  bool allocate(const Arrays& in, Arrays& out) override {
    auto [first, second] = divide(out);
    bool has_norm = norm_->allocate(norm_inputs(in), first), has_products = products_->allocate({}, second);
    return has_norm || has_products;
  }
  void encode(const Arrays& in, Arrays& out) override {
    auto [first, second] = divide(out);
    if (first[0].size() > 0) {
      norm_->encode(norm_inputs(in), first);
    }
    if (std::any_of(second.begin(), second.end(), [](const mx::array& y) { return y.size() > 0; })) {
      products_->encode(product_inputs(first.back(), in), second);
    }
  }
#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    auto [first, second] = divide(out);
    auto of_norm = norm_inputs(in), of_products = product_inputs(first.back(), in);
    auto norm = norm_->operands(of_norm, first);
    products_on_cuda(products_->operands(of_products), &norm, second, stream());
  }
#endif

  Arrays plain_all(const Arrays& in) override {
    auto out = norm_->plain_all(norm_inputs(in));
    return with(out, products_->plain_all(product_inputs(out.back(), in)));
  }
  Arrays parts(const Arrays& in) override {
    auto out = norm_->parts(norm_inputs(in));
    return with(out, products_->parts(product_inputs(out.back(), in)));
  }

  const char* name() const override {
    return "NormProducts";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const NormProducts&>(other);
    return norm_inputs_ == that.norm_inputs_ && is_same(*norm_, *that.norm_) && is_same(*products_, *that.products_);
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shapes = norm_->output_shapes(norm_inputs(in));
    // x has the shape of its norm.
    for (auto& shape : products_->output_shapes(product_inputs(in[0], in))) {
      shapes.push_back(std::move(shape));
    }
    return shapes;
  }

 private:
  static bool is_same(const Node& a, const Node& b) {
    return typeid(a) == typeid(b) && a.is_equivalent(b);
  }
  static Arrays with(Arrays first, const Arrays& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
  Arrays norm_inputs(const Arrays& in) const {
    return {in.begin(), in.begin() + norm_inputs_};
  }
  Arrays product_inputs(const mx::array& normed, const Arrays& in) const {
    Arrays of{normed};
    of.insert(of.end(), in.begin() + norm_inputs_, in.end());
    return of;
  }
  // The outputs of the norm, and the products. A norm with a residual has two outputs; its inputs begin with x and the residual.
  std::pair<Arrays, Arrays> divide(const Arrays& out) const {
    auto end = out.begin() + (norm_inputs_ > 2 ? 2 : 1);
    return {{out.begin(), end}, {end, out.end()}};
  }

  std::shared_ptr<NormNode> norm_;
  size_t norm_inputs_;
  std::shared_ptr<ProductNode> products_;
};

// The node of the norm. With a residual it also returns the sum.
std::optional<NormParts> norm_of(const NormLinearInputs& of, mx::Stream s) {
  if (!of.residual) {
    return rms_norm_node(of.x, of.weight, of.eps, s);
  }
  return add_norm_node({of.x, *of.residual, of.inner, of.weight, of.eps}, s);
}

} // namespace

std::optional<Arrays> norm_linear(const NormLinearInputs& of, mx::Stream s) {
  // Traced norms and products are nodes of their own, as their derivatives are.
  if (is_traced({&of.x, of.weight ? &*of.weight : &of.x, of.residual ? &*of.residual : &of.x, of.inner ? &*of.inner : &of.x})) {
    return std::nullopt;
  }
  std::span<const Parts> ws = of.matrices;
  std::shared_ptr<ProductNode> products;
  if (!of.gate) {
    products = products_node(of.x, ws, s);
  } else if (ws.size() == 2) {
    products = gated_products_node(*of.gate, of.x, ws.first<2>(), s);
  }
  auto norm = products != nullptr ? norm_of(of, s) : std::nullopt;
  if (!norm) {
    return std::nullopt;
  }
  auto of_products = inputs_of(of.x, ws);
  auto inputs = norm->inputs;
  inputs.insert(inputs.end(), of_products.begin() + 1, of_products.end());
  auto node = std::make_shared<NormProducts>(s, norm->node, norm->inputs.size(), std::move(products));
  auto shapes = node->output_shapes(inputs);
  std::vector<mx::Dtype> types(shapes.size(), of.x.dtype());
  auto out = mx::array::make_arrays(std::move(shapes), types, std::move(node), std::move(inputs));
  if (!of.residual) {
    out.insert(out.begin(), of.x);
  }
  return out;
}

} // namespace mlxrs::ops

#else

namespace mlxrs::ops {

std::optional<Arrays> norm_linear(const NormLinearInputs&, mx::Stream) {
  return std::nullopt;
}

} // namespace mlxrs::ops

#endif

namespace mlxrs::ops {

Arrays norm_linear_apart(const NormLinearInputs& of, mx::Stream s) {
  Arrays out;
  if (of.residual) {
    out = add_norm_in_form({of.x, *of.residual, of.inner, of.weight, of.eps}, s);
  } else {
    out = {of.x, rms_norm_in_form(of.x, of.weight, of.eps, s)};
  }
  auto normed = out[1];
  if (of.gate) {
    out.push_back(gated_linear_in_form(*of.gate, normed, {of.matrices.at(0), of.matrices.at(1)}, s));
    return out;
  }
  if (of.matrices.size() == 1) {
    out.push_back(linear_in_form(normed, of.matrices[0], s));
    return out;
  }
  auto products = linear_many_in_form(normed, of.matrices, s);
  out.insert(out.end(), products.begin(), products.end());
  return out;
}

} // namespace mlxrs::ops
