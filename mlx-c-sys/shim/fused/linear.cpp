#include <algorithm>

#include "node.h"

#ifndef __APPLE__

// Of sgemm.cpp.
extern "C" void cblas_sgemm(
    int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
    int ldb, float beta, float* c, int ldc);

namespace mlxrs::fused {
namespace {

// A matrix where it is, or copied into `copy` when its rows are not dense.
struct Matrix {
  const float* at;
  int stride;

  Matrix(const float* data, const Rows& rows, long n, long width, bool dense, std::vector<float>& copy)
      : at(data), stride(static_cast<int>(width)) {
    if (dense) {
      return;
    }
    copy.resize(n * width);
    for (long i = 0; i < n; i++) {
      const float* row = data + rows(static_cast<uint32_t>(i));
      for (long j = 0; j < width; j++) {
        copy[i * width + j] = row[j * rows.step()];
      }
    }
    at = copy.data();
  }
};

class Linear : public Node {
 public:
  using Node::Node;

  void eval_cpu(const Arrays& in, Arrays& out) override {
    const auto &x = in[0], &w = in[1];
    auto& y = out[0];
    y.set_data(mx::allocator::malloc(y.nbytes()));
    if (y.size() == 0) {
      return;
    }
    long n = w.shape(0), k = w.shape(1), m = y.size() / n;
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, x_at = x.data<float>(), w_at = w.data<float>(), y_at = y.data<float>(), x_rows = Rows(x), w_rows = Rows(w),
         x_dense = x.flags().row_contiguous, w_dense = w.flags().row_contiguous] {
          std::vector<float> x_copy, w_copy;
          Matrix x(x_at, x_rows, m, k, x_dense, x_copy), w(w_at, w_rows, n, k, w_dense, w_copy);
          constexpr int row_major = 101, no_trans = 111, trans = 112;
          int least = std::max(1, static_cast<int>(k));
          cblas_sgemm(
              row_major, no_trans, trans, m, n, k, 1.0f, x.at, std::max(x.stride, least), w.at,
              std::max(w.stride, least), 0.0f, y_at, n);
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
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape.back() = in[1].shape(0);
    return {shape};
  }
};

} // namespace

std::optional<mx::array> linear(const mx::array& x, const mx::array& weight, mx::Stream s) {
  bool usual = x.dtype() == mx::float32 && weight.dtype() == mx::float32 && x.ndim() >= 1 && weight.ndim() == 2 &&
      x.shape(-1) == weight.shape(1);
  if (!usual) {
    return std::nullopt;
  }
  auto shape = x.shape();
  shape.back() = weight.shape(0);
  return mx::array(std::move(shape), mx::float32, std::make_shared<Linear>(s), {x, weight});
}

} // namespace mlxrs::fused

#else

namespace mlxrs::fused {

// MLX's own products are Accelerate's.
std::optional<mx::array> linear(const mx::array&, const mx::array&, mx::Stream) {
  return std::nullopt;
}

} // namespace mlxrs::fused

#endif
