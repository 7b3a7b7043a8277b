// The node of y = x w^T for one matrix w, dense or packed.
#include "linear.h"

#ifndef __APPLE__

#include <algorithm>

#include "core/settings.h"
#include "ops/lookup/lookup.h"
#include "product.h"

// Defined in matmul/sgemm.cpp.
extern "C" void cblas_sgemm(
    int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
    int ldb, float beta, float* c, int ldc);

namespace mlxrs::ops {

namespace {

class Linear : public Product {
 public:
  using Product::Product;

  void encode(const Arrays& in, Arrays& out) override {
    const auto &x = in[0], &w = in[1];
    auto& y = out[0];
    if (x.dtype() != mx::float32) {
      return Product::encode(in, out);
    }
    int n = w.shape(0), k = w.shape(1), m = static_cast<int>(y.size() / n);
    mx::cpu::get_command_encoder(stream()).dispatch([=, x = RowMajor(x), w = RowMajor(w), y_at = y.data<float>()] {
      std::vector<char> x_copy, w_copy;
      auto *x_at = reinterpret_cast<const float*>(x.get(x_copy)), *w_at = reinterpret_cast<const float*>(w.get(w_copy));
      constexpr int row_major = 101, no_trans = 111, trans = 112;
      int stride = std::max(1, k);
      cblas_sgemm(row_major, no_trans, trans, m, n, k, 1.0f, x_at, stride, w_at, stride, 0.0f, y_at, n);
    });
  }

  Matrix matrix(const mx::array&, MatrixParts parts) const override {
    const auto& w = parts[0];
    // Products in f32 call sgemm (see encode), so the type here is f16 or bf16.
    auto type = float_of(w.dtype());
    auto coding = type == matmul::Float::f16 ? matmul::Coding::f16 : matmul::Coding::bf16;
    return {{coding, 16, 0, w.shape(0), w.shape(1), nullptr, type, nullptr, nullptr}, parts};
  }

  mx::array plain(const Arrays& in) override {
    return linear_plainly(in[0], {in[1], std::nullopt, std::nullopt, {}}, stream());
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

// The product with a packed matrix. Inputs: x, codes, scales and, for affine codes, biases.
class PackedLinear : public Product {
 public:
  PackedLinear(mx::Stream s, Coded coded) : Product(s), coded_(std::move(coded)) {}

  Matrix matrix(const mx::array& x, MatrixParts parts) const override {
    long n = parts[0].shape(0), k = x.shape(-1);
    auto type = float_of(parts[1].dtype());
    const auto& [coding, packing] = coded_;
    return {{coding, packing.bits, packing.group, n, k, nullptr, type, nullptr, nullptr}, parts};
  }

  mx::array plain(const Arrays& in) override {
    return linear_plainly(in[0], Parts::of(in, 1, coded_.packing), stream());
  }
  Packing packing() const override {
    return coded_.packing;
  }

  const char* name() const override {
    return "PackedLinear";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    return coded_ == static_cast<const PackedLinear&>(other).coded_;
  }

 protected:
  mx::array wide(const Arrays& in) override {
    return Parts::of(in, 1, coded_.packing).in_f32(stream());
  }

 private:
  Coded coded_;
};

} // namespace

bool is_for_cublas(const mx::array& x, bool is_packed, mx::Stream s) {
  constexpr const char* name = "MLX_CUDA_CUBLAS";
  static const bool allowed = is_on(name), asked = allowed && !setting(name).empty();
  if (!allowed || s.device != mx::Device::gpu) {
    return false;
  }
  size_t most = 128;
#ifdef MLXRS_CUDA
  if (multiplies_by_groups(s)) {
    if (!asked) {
      return false;
    }
    // cuBLAS needs unpacked matrices, and unpacking takes as long as some hundred rows.
    most = is_packed ? 256 : most;
  }
#endif
  return x.size() / std::max(1, x.shape(-1)) > most;
}

std::optional<Kind> kind_of(const mx::array& x, const Parts& w, mx::Stream s) {
  const auto& weight = w.weight;
  if (x.ndim() < 1 || !takes(s, x) || weight.ndim() != 2) {
    return std::nullopt;
  }
  if (s.device == mx::Device::gpu) {
    // GPU kernels read 32 columns at a time.
    size_t columns = x.shape(-1);
    if (columns == 0 || columns % 32 != 0 || weight.size() == 0 || (w.scales && w.packing.bits == 1)) {
      return std::nullopt;
    }
  }
  if (!w.scales) {
    bool usual = weight.dtype() == x.dtype() && x.shape(-1) == weight.shape(1) &&
        (x.dtype() == mx::float32 || x.shape(-1) > 0);
    return usual ? std::optional(Kind{}) : std::nullopt;
  }
  auto coding = coding_of(w.packing.mode);
  if (!coding || x.shape(-1) == 0 || !packs(x.shape(-1), x.dtype(), w)) {
    return std::nullopt;
  }
  return Kind{Coded{*coding, w.packing}};
}

std::shared_ptr<Product> product_of(Kind kind, mx::Stream s) {
  if (!kind.coded) {
    return std::make_shared<Linear>(s);
  }
  return std::make_shared<PackedLinear>(s, std::move(*kind.coded));
}

mx::Shape product_shape(const mx::array& x, const mx::array& weight) {
  auto shape = x.shape();
  shape.back() = weight.shape(0);
  return shape;
}

std::optional<mx::array> linear(const mx::array& x, const Parts& w, mx::Stream s) {
  auto kind = kind_of(x, w, s);
  if (!kind) {
    return std::nullopt;
  }
  if (is_for_cublas(x, w.scales.has_value(), s)) {
    auto wide = kind->coded ? expanded(w, *kind->coded, x.dtype(), s) : w.weight;
    return mx::matmul(x, mx::swapaxes(wide, -1, -2, s), s);
  }
  return mx::array(product_shape(x, w.weight), x.dtype(), product_of(std::move(*kind), s), inputs_of(x, {&w, 1}));
}

} // namespace mlxrs::ops

#else

namespace mlxrs::ops {

// MLX's matrix products use Accelerate on Apple CPUs (see form.cpp).
std::optional<mx::array> linear(const mx::array&, const Parts&, mx::Stream) {
  return std::nullopt;
}

} // namespace mlxrs::ops

#endif
