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

#include <algorithm>

#include "product.h"

// Of sgemm.cpp.
extern "C" void cblas_sgemm(
    int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
    int ldb, float beta, float* c, int ldc);

namespace mlxrs::fused {

namespace {

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

  Matrix matrix(const mx::array&, MatrixParts parts) const override {
    const auto& w = parts[0];
    // In f32 it is sgemm's.
    auto type = float_of(w.dtype());
    auto coding = type == matmul::Float::f16 ? matmul::Coding::f16 : matmul::Coding::bf16;
    return {{coding, 16, 0, w.shape(0), w.shape(1), nullptr, type, nullptr, nullptr}, parts};
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

  Matrix matrix(const mx::array& x, MatrixParts parts) const override {
    long n = parts[0].shape(0), k = x.shape(-1);
    auto type = float_of(parts[1].dtype());
    return {{coding_, packing_.bits, packing_.group, n, k, nullptr, type, nullptr, nullptr}, parts};
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
