// Several products of one array as one node.
#include "node.h"

#ifndef __APPLE__

#include <span>
#include <typeinfo>

#include "product.h"

namespace mlxrs::fused {
namespace {

// Products of one x as one node: x is packed once, and threads meet once. The inputs are x and the parts of each matrix.
class Products : public Node {
 public:
  Products(mx::Stream s, std::shared_ptr<Product> product, size_t count)
      : Node(s), product_(std::move(product)), count_(count) {}

  void encode(const Arrays& in, Arrays& out) override {
    std::vector<Operands> operands;
    std::vector<Matrix> matrices;
    for (size_t i = 0; i < count_; i++) {
      set_data(out[i]);
      if (out[i].size() > 0) {
        operands.emplace_back(in[0], out[i]);
        matrices.push_back(matrix(in, i));
      }
    }
    if (operands.empty()) {
      return;
    }
    mx::cpu::get_command_encoder(stream()).dispatch(
        [operands = std::move(operands), matrices = std::move(matrices)]() mutable {
          std::vector<Matrix::Copies> copies(matrices.size());
          std::vector<matmul::Part> parts;
          auto product = operands[0].get();
          for (size_t i = 0; i < operands.size(); i++) {
            parts.push_back({matrices[i].get(copies[i]), i == 0 ? product.y : operands[i].rows()});
          }
          matmul::multiply_parts(product, parts);
        });
  }

  Arrays plain_all(const Arrays& in) override {
    return each(in, [&](const Arrays& in) { return product_->plain(in); });
  }
  Arrays parts(const Arrays& in) override {
    return each(in, [&](Arrays in) {
      auto shape = product_->output_shapes(in)[0];
      return mx::array(std::move(shape), in[0].dtype(), product_, std::move(in));
    });
  }

  const char* name() const override {
    return "Products";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const Products&>(other);
    return count_ == that.count_ && same_product(*product_, *that.product_);
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    std::vector<mx::Shape> shapes;
    for (size_t i = 0; i < count_; i++) {
      shapes.push_back(product_->output_shapes(inputs_of(in, i))[0]);
    }
    return shapes;
  }

  static bool same_product(Product& a, const Product& b) {
    return typeid(a) == typeid(b) && a.is_equivalent(b);
  }
  // One of the matrices.
  Matrix matrix(const Arrays& in, size_t i) const {
    return product_->matrix(in[0], parts_of(in, i));
  }

 private:
  MatrixParts parts_of(const Arrays& in, size_t i) const {
    size_t size = (in.size() - 1) / count_;
    return MatrixParts(in).subspan(1 + i * size, size);
  }
  // The inputs of one of the products.
  Arrays inputs_of(const Arrays& in, size_t i) const {
    auto parts = parts_of(in, i);
    Arrays of{in[0]};
    of.insert(of.end(), parts.begin(), parts.end());
    return of;
  }

  template <typename Body>
  Arrays each(const Arrays& in, const Body& body) const {
    Arrays out;
    for (size_t i = 0; i < count_; i++) {
      out.push_back(body(inputs_of(in, i)));
    }
    return out;
  }

  std::shared_ptr<Product> product_;
  size_t count_;
};

// gate(x aᵀ) · x bᵀ, to the bit as the three nodes that it stands for, without the memory of two of them. The inputs are those of
// `Products`.
class GatedProducts : public Node {
 public:
  GatedProducts(mx::Stream s, Gate gate, std::shared_ptr<Product> product)
      : Node(s), gate_(gate), both_(s, std::move(product), 2) {}

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    set_data(y);
    if (y.size() == 0) {
      return;
    }
    const auto& rows = row_kernels(y.dtype());
    mx::cpu::get_command_encoder(stream()).dispatch(
        [operands = Operands(in[0], y), a = both_.matrix(in, 0), b = both_.matrix(in, 1),
         join = gate_ == Gate::silu ? rows.swiglu : rows.geglu]() mutable {
          Matrix::Copies of_a, of_b;
          matmul::multiply_joined(operands.get(), a.get(of_a), b.get(of_b), join);
        });
  }

  mx::array plain(const Arrays& in) override {
    auto both = both_.plain_all(in);
    return gated_plainly(gate_, both[0], both[1], stream());
  }
  Arrays parts(const Arrays& in) override {
    auto both = both_.parts(in);
    return {gated_apart(gate_, both[0], both[1], stream())};
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

// Products of one array on this stream that nobody has computed yet and whose matrices are written alike: what they are, and their
// inputs as one list. Not in f32, where products may be sgemm's.
std::optional<std::pair<std::shared_ptr<Product>, Arrays>> made_products(std::span<const mx::array> ys, mx::Stream s) {
  std::shared_ptr<Product> product;
  Arrays inputs;
  for (const auto& y : ys) {
    auto one = uncomputed<Product>(y, s);
    if (one == nullptr || y.dtype() == mx::float32) {
      return std::nullopt;
    }
    const auto& in = y.inputs();
    if (product == nullptr) {
      product = one;
      inputs = in;
      continue;
    }
    if (!Products::same_product(*product, *one) || in[0].id() != inputs[0].id()) {
      return std::nullopt;
    }
    for (size_t i = 1; i < in.size(); i++) {
      // Their numbers of rows may differ.
      if (in[i].dtype() != inputs[i].dtype() || in[i].shape(-1) != inputs[i].shape(-1)) {
        return std::nullopt;
      }
    }
    inputs.insert(inputs.end(), in.begin() + 1, in.end());
  }
  return std::pair(std::move(product), std::move(inputs));
}

} // namespace

std::optional<mx::array> gated_products(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s) {
  const mx::array both[] = {x, up};
  auto made = made_products(both, s);
  if (!made || x.shape() != up.shape()) {
    return std::nullopt;
  }
  auto node = std::make_shared<GatedProducts>(s, gate, std::move(made->first));
  return mx::array(x.shape(), x.dtype(), std::move(node), std::move(made->second));
}

Arrays together(const Arrays& products, mx::Stream s) {
  auto made = products.size() > 1 ? made_products(products, s) : std::nullopt;
  if (!made) {
    return products;
  }
  std::vector<mx::Shape> shapes;
  for (const auto& y : products) {
    shapes.push_back(y.shape());
  }
  auto node = std::make_shared<Products>(s, std::move(made->first), products.size());
  return mx::array::make_arrays(
      std::move(shapes), std::vector<mx::Dtype>(products.size(), products[0].dtype()), node, std::move(made->second));
}

} // namespace mlxrs::fused

#else

namespace mlxrs::fused {

// MLX's own products are Accelerate's.
std::optional<mx::array> gated_products(Gate, const mx::array&, const mx::array&, mx::Stream) {
  return std::nullopt;
}
Arrays together(const Arrays& products, mx::Stream) {
  return products;
}

} // namespace mlxrs::fused

#endif
