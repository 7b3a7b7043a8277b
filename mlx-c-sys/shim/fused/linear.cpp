#include <algorithm>
#include <typeinfo>

#include "kernels.h"
#include "linear.h"

namespace mlxrs::fused {

mx::array packed_plainly(
    const mx::array& x, const mx::array& w, const mx::array& scales, const std::optional<mx::array>& biases,
    const Packing& packing, mx::Stream s) {
  if (is_wrong_on_gpus(scales, s)) {
    auto wide = mx::dequantize(
        w, scales, biases, packing.group, packing.bits, packing.mode, std::nullopt, x.dtype(), s);
    return mx::matmul(x, mx::swapaxes(wide, -1, -2, s), s);
  }
  return mx::quantized_matmul(x, w, scales, biases, true, packing.group, packing.bits, packing.mode, s);
}

} // namespace mlxrs::fused

#ifndef __APPLE__

// Of sgemm.cpp.
extern "C" void cblas_sgemm(
    int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
    int ldb, float beta, float* c, int ldc);

namespace mlxrs::fused {

namespace {

// A matrix as the kernels take it. Where its parts are is known when they are evaluated.
class Matrix {
 public:
  // Behind x, a product's inputs are the elements or, of a packed matrix, codes, scales and, if it has some, biases.
  Matrix(const matmul::Weights& w, const Arrays& in) : w_(w), parts_(in.begin() + 1, in.end()) {}

  const matmul::Weights& get() {
    const void** at[] = {&w_.data, &w_.scales, &w_.biases};
    for (size_t i = 0; i < parts_.size(); i++) {
      *at[i] = parts_[i].get(copies_[i]);
    }
    return w_;
  }

 private:
  matmul::Weights w_;
  std::vector<Dense> parts_;
  std::vector<char> copies_[3];
};

// x and y of a product, likewise.
class Operands {
 public:
  Operands(const mx::array& x, mx::array& y)
      : type_(float_of(x.dtype())), m_(y.size() / y.shape(-1)), x_bytes_(x.shape(-1) * x.itemsize()),
        y_bytes_(y.shape(-1) * y.itemsize()), x_(x), y_(y.data<char>()) {}

  matmul::Product get() {
    x_rows_ = rows_of<const void>(x_.get(copy_), m_, x_bytes_);
    y_rows_ = rows_of<void>(y_, m_, y_bytes_);
    return {type_, m_, x_rows_.data(), y_rows_.data()};
  }

 private:
  matmul::Float type_;
  long m_, x_bytes_, y_bytes_;
  Dense x_;
  char* y_;
  std::vector<char> copy_;
  std::vector<const void*> x_rows_;
  std::vector<void*> y_rows_;
};

// What x @ w.T has in common, whatever w is. Gradients are products in f32: MLX's own of 16-bit and packed arrays are slow,
// and round more.
class Product : public Node {
 public:
  using Node::Node;

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    set_data(y);
    if (y.size() == 0) {
      return;
    }
    mx::cpu::get_command_encoder(stream()).dispatch(
        [operands = Operands(in[0], y), w = matrix(in)]() mutable { matmul::multiply(operands.get(), w.get()); });
  }

  // The matrix behind x in a node's inputs.
  virtual Matrix matrix(const Arrays& in) const = 0;

  Arrays vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs)
      override {
    const auto& x = primals[0];
    auto dy = mx::astype(cotangents[0], mx::float32, stream());
    Arrays wanted;
    for (int i : argnums) {
      if (i == 0) {
        wanted.push_back(mx::astype(mx::matmul(dy, wide(primals), stream()), x.dtype(), stream()));
      } else if (i == 1 && mx::issubdtype(primals[1].dtype(), mx::floating)) {
        auto columns = mx::swapaxes(mx::reshape(dy, {-1, dy.shape(-1)}, stream()), 0, 1, stream());
        auto rows = mx::reshape(mx::astype(x, mx::float32, stream()), {-1, x.shape(-1)}, stream());
        wanted.push_back(mx::astype(mx::matmul(columns, rows, stream()), primals[1].dtype(), stream()));
      } else {
        return Node::vjp(primals, cotangents, argnums, outputs);
      }
    }
    return wanted;
  }

  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape.back() = in[1].shape(0);
    return {shape};
  }

 protected:
  // w in f32, n x k.
  virtual mx::array wide(const Arrays& in) = 0;
};

class Linear : public Product {
 public:
  using Product::Product;

  void encode(const Arrays& in, Arrays& out) override {
    const auto &x = in[0], &w = in[1];
    auto& y = out[0];
    if (x.dtype() != mx::float32 || y.size() == 0) {
      return Product::encode(in, out);
    }
    set_data(y);
    int n = w.shape(0), k = w.shape(1), m = static_cast<int>(y.size() / n);
    mx::cpu::get_command_encoder(stream()).dispatch([=, x = Dense(x), w = Dense(w), y_at = y.data<float>()] {
      std::vector<char> x_copy, w_copy;
      auto *x_at = reinterpret_cast<const float*>(x.get(x_copy)), *w_at = reinterpret_cast<const float*>(w.get(w_copy));
      constexpr int row_major = 101, no_trans = 111, trans = 112;
      int stride = std::max(1, k);
      cblas_sgemm(row_major, no_trans, trans, m, n, k, 1.0f, x_at, stride, w_at, stride, 0.0f, y_at, n);
    });
  }

  Matrix matrix(const Arrays& in) const override {
    const auto& w = in[1];
    // In f32 it is sgemm's.
    auto type = float_of(w.dtype());
    auto coding = type == matmul::Float::f16 ? matmul::Coding::f16 : matmul::Coding::bf16;
    return {{coding, 16, 0, w.shape(0), w.shape(1), nullptr, type, nullptr, nullptr}, in};
  }

  mx::array plain(const Arrays& in) override {
    return mx::matmul(in[0], mx::swapaxes(in[1], -1, -2, stream()), stream());
  }

  const char* name() const override {
    return "Linear";
  }
  bool is_equivalent(const mx::Primitive&) const override {
    return true;
  }

 protected:
  mx::array wide(const Arrays& in) override {
    return mx::astype(in[1], mx::float32, stream());
  }
};

// The inputs are x, packed, scales and, for affine codes, biases.
class PackedLinear : public Product {
 public:
  PackedLinear(mx::Stream s, matmul::Coding coding, const Packing& packing)
      : Product(s), coding_(coding), packing_(packing) {}

  Matrix matrix(const Arrays& in) const override {
    long n = in[1].shape(0), k = in[0].shape(-1);
    auto type = float_of(in[2].dtype());
    return {{coding_, packing_.bits, packing_.group, n, k, nullptr, type, nullptr, nullptr}, in};
  }

  mx::array plain(const Arrays& in) override {
    auto biases = in.size() > 3 ? std::make_optional(in[3]) : std::nullopt;
    return packed_plainly(in[0], in[1], in[2], biases, packing_, stream());
  }

  const char* name() const override {
    return "PackedLinear";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const PackedLinear&>(other);
    return coding_ == that.coding_ && packing_.bits == that.packing_.bits && packing_.group == that.packing_.group;
  }

 protected:
  mx::array wide(const Arrays& in) override {
    auto biases = in.size() > 3 ? std::make_optional(in[3]) : std::nullopt;
    return mx::dequantize(
        in[1], in[2], biases, packing_.group, packing_.bits, packing_.mode, std::nullopt, mx::float32, stream());
  }

 private:
  matmul::Coding coding_;
  Packing packing_;
};

// gate(x aᵀ) · x bᵀ, to the bit as the three nodes that it stands for, without the memory of two of them. The inputs are x, the parts
// of a and those of b.
class GatedProducts : public Node {
 public:
  GatedProducts(mx::Stream s, Gate gate, std::shared_ptr<Product> product)
      : Node(s), gate_(gate), product_(std::move(product)) {}

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    set_data(y);
    if (y.size() == 0) {
      return;
    }
    const auto& rows = row_kernels(y.dtype());
    auto [a, b] = apart(in);
    mx::cpu::get_command_encoder(stream()).dispatch(
        [operands = Operands(in[0], y), a = product_->matrix(a), b = product_->matrix(b),
         join = gate_ == Gate::silu ? rows.swiglu : rows.geglu]() mutable {
          matmul::multiply_joined(operands.get(), a.get(), b.get(), join);
        });
  }

  mx::array plain(const Arrays& in) override {
    auto [a, b] = apart(in);
    return gated_plainly(gate_, product_->plain(a), product_->plain(b), stream());
  }
  Arrays parts(const Arrays& in) override {
    auto [a, b] = apart(in);
    auto shape = product_->output_shapes(in)[0];
    auto type = in[0].dtype();
    mx::array x(shape, type, product_, std::move(a)), up(shape, type, product_, std::move(b));
    return {gated_apart(gate_, x, up, stream())};
  }

  const char* name() const override {
    return "GatedProducts";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const GatedProducts&>(other);
    return gate_ == that.gate_ && typeid(*product_) == typeid(*that.product_) && product_->is_equivalent(*that.product_);
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return product_->output_shapes(in);
  }

 private:
  // The inputs of the two products.
  static std::pair<Arrays, Arrays> apart(const Arrays& in) {
    auto half = static_cast<std::ptrdiff_t>(in.size() / 2);
    Arrays a(in.begin(), in.begin() + 1 + half), b{in[0]};
    b.insert(b.end(), in.begin() + 1 + half, in.end());
    return {std::move(a), std::move(b)};
  }

  Gate gate_;
  std::shared_ptr<Product> product_;
};

} // namespace

std::optional<mx::array> linear(const mx::array& x, const mx::array& weight, mx::Stream s) {
  bool usual = is_float(x.dtype()) && weight.dtype() == x.dtype() && x.ndim() >= 1 && weight.ndim() == 2 &&
      x.shape(-1) == weight.shape(1) && (x.dtype() == mx::float32 || x.shape(-1) > 0);
  if (!usual) {
    return std::nullopt;
  }
  auto shape = x.shape();
  shape.back() = weight.shape(0);
  return mx::array(std::move(shape), x.dtype(), std::make_shared<Linear>(s), {x, weight});
}

std::optional<mx::array> packed_linear(
    const mx::array& x,
    const mx::array& packed,
    const mx::array& scales,
    const std::optional<mx::array>& biases,
    const Packing& packing,
    mx::Stream s) {
  auto coding = coding_of(packing.mode);
  bool affine = coding == matmul::Coding::affine;
  if (!coding || !is_float(x.dtype()) || x.ndim() < 1 || x.shape(-1) == 0 || packed.ndim() != 2 ||
      !packs(x.shape(-1), x.dtype(), packed, scales, biases, packing, affine)) {
    return std::nullopt;
  }
  auto shape = x.shape();
  shape.back() = packed.shape(0);
  Arrays inputs{x, packed, scales};
  if (affine) {
    inputs.push_back(*biases);
  }
  return mx::array(
      std::move(shape), x.dtype(), std::make_shared<PackedLinear>(s, *coding, packing), std::move(inputs));
}

std::optional<mx::array> gated_products(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s) {
  // Products in f32 may be sgemm's; and a derivative needs both products, which this would have to compute again.
  if (!x.has_primitive() || !up.has_primitive() || x.dtype() == mx::float32 || x.is_tracer() || up.is_tracer()) {
    return std::nullopt;
  }
  auto a = std::dynamic_pointer_cast<Product>(x.primitive_ptr()), b = std::dynamic_pointer_cast<Product>(up.primitive_ptr());
  if (a == nullptr || b == nullptr || typeid(*a) != typeid(*b) || !a->is_equivalent(*b) || a->stream() != s ||
      b->stream() != s || x.inputs()[0].id() != up.inputs()[0].id()) {
    return std::nullopt;
  }
  Arrays inputs = x.inputs();
  for (size_t i = 1; i < inputs.size(); i++) {
    const auto& other = up.inputs()[i];
    if (other.dtype() != inputs[i].dtype() || other.shape() != inputs[i].shape()) {
      return std::nullopt;
    }
  }
  inputs.insert(inputs.end(), up.inputs().begin() + 1, up.inputs().end());
  return mx::array(x.shape(), x.dtype(), std::make_shared<GatedProducts>(s, gate, std::move(a)), std::move(inputs));
}

} // namespace mlxrs::fused

#else

namespace mlxrs::fused {

// MLX's own products are Accelerate's.
std::optional<mx::array> linear(const mx::array&, const mx::array&, mx::Stream) {
  return std::nullopt;
}
std::optional<mx::array> packed_linear(
    const mx::array&, const mx::array&, const mx::array&, const std::optional<mx::array>&, const Packing&, mx::Stream) {
  return std::nullopt;
}
std::optional<mx::array> gated_products(Gate, const mx::array&, const mx::array&, mx::Stream) {
  return std::nullopt;
}

} // namespace mlxrs::fused

#endif
