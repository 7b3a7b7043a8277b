// The node that multiplies one x with several matrices.
#include "linear.h"

#ifndef __APPLE__

#include <typeinfo>

#include "product.h"

namespace mlxrs::ops {
namespace {

// Whether two products have the same class and settings.
bool is_same(Product& a, const Product& b) {
  return typeid(a) == typeid(b) && a.is_equivalent(b);
}

} // namespace

void Products::encode(const Arrays& in, Arrays& out) {
  std::vector<Operands> operands;
  std::vector<Matrix> matrices;
  operands.reserve(count_);
  matrices.reserve(count_);
  for (size_t i = 0; i < count_; i++) {
    if (out[i].size() > 0) {
      operands.emplace_back(in[0], out[i]);
      matrices.push_back(matrix(in, i));
    }
  }
  mx::cpu::get_command_encoder(stream()).dispatch(
      [operands = std::move(operands), matrices = std::move(matrices)]() mutable {
        std::vector<Matrix::Copies> copies(matrices.size());
        std::vector<matmul::Part> parts;
        parts.reserve(operands.size());
        auto product = operands[0].get();
        for (size_t i = 0; i < operands.size(); i++) {
          parts.push_back({matrices[i].get(copies[i]), i == 0 ? product.y : operands[i].rows()});
        }
        matmul::multiply_parts(product, parts);
      });
}

Arrays Products::plain_all(const Arrays& in) {
  return each(in, [&](const Arrays& in) { return product_->plain(in); });
}

Arrays Products::parts(const Arrays& in) {
  return each(in, [&](Arrays in) {
    auto shape = product_->output_shapes(in)[0];
    return mx::array(std::move(shape), in[0].dtype(), product_, std::move(in));
  });
}

bool Products::is_equivalent(const mx::Primitive& other) const {
  const auto& that = static_cast<const Products&>(other);
  return count_ == that.count_ && is_same(*product_, *that.product_);
}

std::vector<mx::Shape> Products::output_shapes(const Arrays& in) {
  std::vector<mx::Shape> shapes;
  shapes.reserve(count_);
  for (size_t i = 0; i < count_; i++) {
    shapes.push_back(product_shape(in[0], parts_of(in, i)[0]));
  }
  return shapes;
}

Matrix Products::matrix(const Arrays& in, size_t i) const {
  return product_->matrix(in[0], parts_of(in, i));
}

MatrixParts Products::parts_of(const Arrays& in, size_t i) const {
  size_t size = (in.size() - 1) / count_;
  return MatrixParts(in).subspan(1 + i * size, size);
}

Arrays Products::inputs_of(const Arrays& in, size_t i) const {
  auto parts = parts_of(in, i);
  Arrays of{in[0]};
  of.insert(of.end(), parts.begin(), parts.end());
  return of;
}

template <typename Body>
Arrays Products::each(const Arrays& in, const Body& body) const {
  Arrays out;
  for (size_t i = 0; i < count_; i++) {
    out.push_back(body(inputs_of(in, i)));
  }
  return out;
}

std::optional<Kind> kind_of(const mx::array& x, std::span<const Parts> ws, mx::Stream s) {
  std::optional<Kind> kind;
  if (!ws.empty() && is_for_cublas(x, ws[0].scales.has_value(), s)) {
    return kind;
  }
  // The matrices may have different numbers of rows.
  auto is_alike = [](const mx::array& a, const mx::array& b) {
    return a.dtype() == b.dtype() && a.shape(-1) == b.shape(-1);
  };
  for (const auto& w : ws) {
    auto own = kind_of(x, w, s);
    if (!own || x.dtype() == mx::float32 || is_traced({&x, &w.weight})) {
      return std::nullopt;
    }
    if (!kind) {
      kind = std::move(own);
      continue;
    }
    const auto& first = ws[0];
    if (*kind != *own || !is_alike(first.weight, w.weight) || (w.scales && !is_alike(*first.scales, *w.scales)) ||
        (w.biases && !is_alike(*first.biases, *w.biases))) {
      return std::nullopt;
    }
  }
  return kind;
}

Arrays inputs_of(const mx::array& x, std::span<const Parts> ws) {
  Arrays in;
  in.reserve(1 + 3 * ws.size());
  in.push_back(x);
  for (const auto& w : ws) {
    in.push_back(w.weight);
    if (w.scales) {
      in.push_back(*w.scales);
    }
    if (w.biases) {
      in.push_back(*w.biases);
    }
  }
  return in;
}

std::shared_ptr<ProductNode> products_node(const mx::array& x, std::span<const Parts> ws, mx::Stream s) {
  // The CUDA kernels multiply with at most three matrices.
  bool fits = !ws.empty() && (s.device == mx::Device::cpu || ws.size() <= 3);
  auto kind = fits ? kind_of(x, ws, s) : std::nullopt;
  if (!kind) {
    return nullptr;
  }
  auto product = product_of(std::move(*kind), s);
  if (ws.size() == 1) {
    return product;
  }
  return std::make_shared<Products>(s, std::move(product), ws.size());
}

std::optional<Arrays> linear_many(const mx::array& x, const std::vector<Parts>& ws, mx::Stream s) {
  auto node = ws.size() > 1 ? products_node(x, ws, s) : nullptr;
  if (node == nullptr) {
    return std::nullopt;
  }
  auto in = inputs_of(x, ws);
  auto shapes = node->output_shapes(in);
  return mx::array::make_arrays(
      std::move(shapes), std::vector<mx::Dtype>(ws.size(), x.dtype()), std::move(node), std::move(in));
}

} // namespace mlxrs::ops

#else

namespace mlxrs::ops {

std::optional<Arrays> linear_many(const mx::array&, const std::vector<Parts>&, mx::Stream) {
  return std::nullopt;
}

} // namespace mlxrs::ops

#endif
