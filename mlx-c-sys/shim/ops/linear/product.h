// The node of y = x w^T for dense and packed w, and its operands as the kernels of matmul/ read them.
#pragma once

#include <array>
#include <span>

#include "operands.h"

#ifdef MLXRS_CUDA
#include "cuda/product.h"
#endif

namespace mlxrs::ops {

using MatrixParts = std::span<const mx::array>;

// A matrix as the kernels read it. It can be made before its parts are evaluated; `get` reads their addresses.
class Matrix {
 public:
  using Copies = std::array<std::vector<char>, 3>;

  // `parts` are the dense elements, or codes, scales and optionally biases of a packed matrix.
  Matrix(const matmul::Weights& w, MatrixParts parts) : w_(w) {
    std::transform(parts.begin(), parts.end(), parts_.begin(), [](const mx::array& part) { return RowMajor(part); });
  }

  // Parts that are not row-contiguous are copied to `copies`, which must live as long as the matrix is read.
  matmul::Weights get(Copies& copies) const {
    auto w = w_;
    w.data = parts_[0].get(copies[0]);
    w.scales = parts_[1].get(copies[1]);
    w.biases = parts_[2].get(copies[2]);
    return w;
  }

 private:
  matmul::Weights w_;
  std::array<RowMajor, 3> parts_;
};

// x and y of a product as the kernels read them.
class Operands {
 public:
  Operands(const mx::array& x, mx::array& y)
      : type_(float_of(x.dtype())), m_(y.size() / y.shape(-1)), x_bytes_(x.shape(-1) * x.itemsize()),
        y_bytes_(y.shape(-1) * y.itemsize()), x_(x), y_(y.data<char>()) {}

  matmul::Product get() {
    x_rows_ = rows_of<const void>(x_.get(copy_), m_, x_bytes_);
    return {type_, m_, x_rows_.data(), rows()};
  }
  // The rows of y.
  void* const* rows() {
    y_rows_ = rows_of<void>(y_, m_, y_bytes_);
    return y_rows_.data();
  }

 private:
  matmul::Float type_;
  long m_, x_bytes_, y_bytes_;
  RowMajor x_;
  char* y_;
  std::vector<char> copy_;
  std::vector<const void*> x_rows_;
  std::vector<void*> y_rows_;
};

// The shape of x @ weight.T.
mx::Shape product_shape(const mx::array& x, const mx::array& weight);

// A node that multiplies x with matrices. Inputs: x, then the parts of each matrix.
class ProductNode : public Node {
 public:
  using Node::Node;

  bool allocate(const Arrays&, Arrays& out) override {
    return allocate_lines(out);
  }
#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    products_on_cuda(operands(in), nullptr, out, stream());
  }
  virtual ProductOperands operands(const Arrays& in) const = 0;
#endif
};

// The base class of y = x w^T for all codings of w. Gradients are f32 products of MLX: its own gradients of 16-bit and
// packed arrays are slow and less exact.
class Product : public ProductNode {
 public:
  using ProductNode::ProductNode;

  void encode(const Arrays& in, Arrays& out) override {
    mx::cpu::get_command_encoder(stream()).dispatch(
        [operands = Operands(in[0], out[0]), w = matrix(in[0], MatrixParts(in).subspan(1))]() mutable {
          Matrix::Copies copies;
          matmul::multiply(operands.get(), w.get(copies));
        });
  }

#ifdef MLXRS_CUDA
  ProductOperands operands(const Arrays& in) const override {
    return {in[0], {MatrixParts(in).subspan(1)}, packing(), -1};
  }
#endif

  // The packing of a quantised matrix.
  virtual Packing packing() const {
    return {1, 16, ""};
  }
  // The matrix with these parts. They are the node's inputs after x.
  virtual Matrix matrix(const mx::array& x, MatrixParts parts) const = 0;

  Arrays derive(
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
        return Node::derive(primals, cotangents, argnums, outputs);
      }
    }
    return wanted;
  }

  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {product_shape(in[0], in[1])};
  }

 protected:
  // w in f32, [n, k].
  virtual mx::array wide(const Arrays& in) = 0;
};

// Selects the class of a product: dense, or packed with a coding.
struct Kind {
  std::optional<Coded> coded;

  bool operator==(const Kind&) const = default;
};
// Whether cuBLAS multiplies x with matrices that are dense or packed, which is faster with many rows of x. The last bits of a
// row then depend on the number of rows. On Hopper, whose kernels are not much slower, it does so only with
// MLX_CUDA_CUBLAS=on; elsewhere MLX_CUDA_CUBLAS=off selects our kernels.
bool is_for_cublas(const mx::array& x, bool is_packed, mx::Stream s);
// Returns nothing for operands that our kernels do not support.
std::optional<Kind> kind_of(const mx::array& x, const Parts& w, mx::Stream s);
// The common kind of several matrices that one node can multiply. Returns nothing for f32, and for matrices of
// different kinds.
std::optional<Kind> kind_of(const mx::array& x, std::span<const Parts> ws, mx::Stream s);
std::shared_ptr<Product> product_of(Kind kind, mx::Stream s);
// The inputs of a node: x, then the parts of each matrix.
Arrays inputs_of(const mx::array& x, std::span<const Parts> ws);

// x multiplied with several matrices as one node. Inputs: x, then the parts of each matrix. Output i is x w[i]^T.
class Products : public ProductNode {
 public:
  Products(mx::Stream s, std::shared_ptr<Product> product, size_t count)
      : ProductNode(s), product_(std::move(product)), count_(count) {}

  void encode(const Arrays& in, Arrays& out) override;
#ifdef MLXRS_CUDA
  ProductOperands operands(const Arrays& in) const override {
    ProductOperands of{in[0], {}, product_->packing(), -1};
    for (size_t i = 0; i < count_; i++) {
      of.matrices.push_back(parts_of(in, i));
    }
    return of;
  }
#endif
  Arrays plain_all(const Arrays& in) override;
  Arrays parts(const Arrays& in) override;
  const char* name() const override {
    return "Products";
  }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const Arrays& in) override;

  // Matrix number i.
  Matrix matrix(const Arrays& in, size_t i) const;

 private:
  MatrixParts parts_of(const Arrays& in, size_t i) const;
  // The inputs that a node of product i alone would have.
  Arrays inputs_of(const Arrays& in, size_t i) const;
  template <typename Body>
  Arrays each(const Arrays& in, const Body& body) const;

  std::shared_ptr<Product> product_;
  size_t count_;
};

// The node of linear_many, or of `linear` for one matrix.
std::shared_ptr<ProductNode> products_node(const mx::array& x, std::span<const Parts> ws, mx::Stream s);

} // namespace mlxrs::ops
