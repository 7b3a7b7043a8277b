// The node of gate(x a^T) * (x b^T).
#include "gated.h"

#ifndef __APPLE__

#include "ops/linear/product.h"

namespace mlxrs::ops {
namespace {

// Computes gate(x a^T) * (x b^T) with the same bits as the three separate nodes, without memory for the two products.
// The inputs are those of `Products`.
class GatedProducts : public ProductNode {
 public:
  GatedProducts(mx::Stream s, Gate gate, std::shared_ptr<Product> product)
      : ProductNode(s), gate_(gate), both_(s, std::move(product), 2) {}

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    const auto& rows = row_kernels(y.dtype());
    mx::cpu::get_command_encoder(stream()).dispatch(
        [operands = Operands(in[0], y), a = both_.matrix(in, 0), b = both_.matrix(in, 1),
         join = gate_ == Gate::silu ? rows.swiglu : rows.geglu]() mutable {
          Matrix::Copies of_a, of_b;
          matmul::multiply_joined(operands.get(), a.get(of_a), b.get(of_b), join);
        });
  }

#ifdef MLXRS_CUDA
  ProductOperands operands(const Arrays& in) const override {
    auto of = both_.operands(in);
    of.gate = static_cast<int>(gate_);
    return of;
  }
#endif

  mx::array plain(const Arrays& in) override {
    auto both = both_.plain_all(in);
    return gated_plainly(gate_, both[0], both[1], stream());
  }
  Arrays parts(const Arrays& in) override {
    auto both = both_.parts(in);
    return {*gated(gate_, both[0], both[1], stream())};
  }

  const char* name() const override {
    return "GatedProducts";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const GatedProducts&>(other);
    return gate_ == that.gate_ && both_.is_equivalent(that.both_);
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {both_.output_shapes(in)[0]};
  }

 private:
  Gate gate_;
  Products both_;
};

} // namespace

std::shared_ptr<ProductNode> gated_products_node(Gate gate, const mx::array& x, std::span<const Parts, 2> ws, mx::Stream s) {
  auto kind = kind_of(x, ws, s);
  if (!kind || ws[0].weight.shape(0) != ws[1].weight.shape(0)) {
    return nullptr;
  }
  return std::make_shared<GatedProducts>(s, gate, product_of(std::move(*kind), s));
}

std::optional<mx::array> gated_linear(Gate gate, const mx::array& x, const std::array<Parts, 2>& ws, mx::Stream s) {
  auto node = gated_products_node(gate, x, ws, s);
  if (node == nullptr) {
    return std::nullopt;
  }
  return mx::array(product_shape(x, ws[0].weight), x.dtype(), std::move(node), inputs_of(x, ws));
}

} // namespace mlxrs::ops

#else

namespace mlxrs::ops {

std::optional<mx::array> gated_linear(Gate, const mx::array&, const std::array<Parts, 2>&, mx::Stream) {
  return std::nullopt;
}

} // namespace mlxrs::ops

#endif
