// Several products of one array as one node.
#include "linear.h"

#ifndef __APPLE__

#include <typeinfo>

#include "product.h"

namespace mlxrs::ops {
namespace {

bool is_same(Product& a, const Product& b) {
  return typeid(a) == typeid(b) && a.is_equivalent(b);
}

} // namespace

void Products::encode(const Arrays& in, Arrays& out) {
  std::vector<Operands> operands;
  std::vector<Matrix> matrices;
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
  for (size_t i = 0; i < count_; i++) {
    shapes.push_back(product_->output_shapes(inputs_of(in, i))[0]);
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

std::optional<Made> products_of(const mx::array& x, const std::vector<Parts>& ws, mx::Stream s) {
  std::optional<Made> all;
  for (const auto& w : ws) {
    auto one = product_of(x, w, s);
    if (!one || x.dtype() == mx::float32 || is_traced({&x, &w.weight})) {
      return std::nullopt;
    }
    if (!all) {
      all = std::move(one);
      continue;
    }
    if (!is_same(*all->product, *one->product)) {
      return std::nullopt;
    }
    for (size_t i = 1; i < one->in.size(); i++) {
      // Their numbers of rows may differ.
      if (one->in[i].dtype() != all->in[i].dtype() || one->in[i].shape(-1) != all->in[i].shape(-1)) {
        return std::nullopt;
      }
    }
    all->in.insert(all->in.end(), one->in.begin() + 1, one->in.end());
  }
  return all;
}

std::optional<Arrays> linear_many(const mx::array& x, const std::vector<Parts>& ws, mx::Stream s) {
  auto made = ws.size() > 1 ? products_of(x, ws, s) : std::nullopt;
  if (!made) {
    return std::nullopt;
  }
  auto node = std::make_shared<Products>(s, std::move(made->product), ws.size());
  auto shapes = node->output_shapes(made->in);
  return mx::array::make_arrays(
      std::move(shapes), std::vector<mx::Dtype>(ws.size(), x.dtype()), node, std::move(made->in));
}

} // namespace mlxrs::ops

#else

namespace mlxrs::ops {

std::optional<Arrays> linear_many(const mx::array&, const std::vector<Parts>&, mx::Stream) {
  return std::nullopt;
}

} // namespace mlxrs::ops

#endif
