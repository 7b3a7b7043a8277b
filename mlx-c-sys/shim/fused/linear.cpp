#include <algorithm>

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

// What x @ w.T has in common, whatever w is. Gradients are products in f32: MLX's own of 16-bit and packed arrays are slow,
// and round more.
class Product : public Node {
 public:
  using Node::Node;

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

  void eval_cpu(const Arrays& in, Arrays& out) override {
    const auto &x = in[0], &w = in[1];
    auto& y = out[0];
    set_data(y);
    if (y.size() == 0) {
      return;
    }
    int n = w.shape(0), k = w.shape(1), m = static_cast<int>(y.size() / n);
    auto type = float_of(x.dtype());
    mx::cpu::get_command_encoder(stream()).dispatch([=, x = Dense(x), w = Dense(w), y_at = y.data<char>()] {
      std::vector<char> x_copy, w_copy;
      const char *x_at = x.get(x_copy), *w_at = w.get(w_copy);
      if (type == matmul::Float::f32) {
        constexpr int row_major = 101, no_trans = 111, trans = 112;
        int stride = std::max(1, k);
        return cblas_sgemm(
            row_major, no_trans, trans, m, n, k, 1.0f, reinterpret_cast<const float*>(x_at), stride,
            reinterpret_cast<const float*>(w_at), stride, 0.0f, reinterpret_cast<float*>(y_at), n);
      }
      auto coding = type == matmul::Float::f16 ? matmul::Coding::f16 : matmul::Coding::bf16;
      auto x_rows = rows_of<const void>(x_at, m, 2L * k);
      auto y_rows = rows_of<void>(y_at, m, 2L * n);
      matmul::multiply({type, m, x_rows.data(), y_rows.data()}, {coding, 16, 0, n, k, w_at, type, nullptr, nullptr});
    });
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

  void eval_cpu(const Arrays& in, Arrays& out) override {
    const auto &x = in[0], &scales = in[2];
    auto& y = out[0];
    set_data(y);
    if (y.size() == 0) {
      return;
    }
    long n = in[1].shape(0), k = x.shape(-1), m = y.size() / n;
    matmul::Weights w{coding_, packing_.bits, packing_.group, n, k, nullptr, float_of(scales.dtype()), nullptr, nullptr};
    bool affine = coding_ == matmul::Coding::affine;
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, type = float_of(x.dtype()), size = static_cast<long>(x.itemsize()), x = Dense(x), packed = Dense(in[1]),
         scales = Dense(scales), biases = Dense(affine ? in[3] : scales), y_at = y.data<char>()]() mutable {
          std::vector<char> x_copy, w_copy, s_copy, b_copy;
          w.data = packed.get(w_copy);
          w.scales = scales.get(s_copy);
          w.biases = affine ? biases.get(b_copy) : nullptr;
          auto x_rows = rows_of<const void>(x.get(x_copy), m, size * k);
          auto y_rows = rows_of<void>(y_at, m, size * n);
          matmul::multiply({type, m, x_rows.data(), y_rows.data()}, w);
        });
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

} // namespace mlxrs::fused

#endif
