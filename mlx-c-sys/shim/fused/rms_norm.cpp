#include "mlx/fast.h"

#include "kernels.h"
#include "node.h"

namespace mlxrs::fused {
namespace {

class RmsNorm : public Node {
 public:
  RmsNorm(mx::Stream s, float eps) : Node(s), eps_(eps) {}

  void eval_cpu(const Arrays& in, Arrays& out) override {
    out[0].set_data(mx::allocator::malloc(out[0].nbytes()));
    with_type(out[0].dtype(), [&](auto type) { run<decltype(type)>(in, out[0]); });
  }

  mx::array plain(const Arrays& in) override {
    return mx::fast::rms_norm(in[0], in.size() > 1 ? std::make_optional(in[1]) : std::nullopt, eps_, stream());
  }

  const char* name() const override {
    return "RmsNorm";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    return eps_ == static_cast<const RmsNorm&>(other).eps_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[0].shape()};
  }

 private:
  template <typename T>
  void run(const Arrays& in, mx::array& out) {
    long n = in[0].shape(-1);
    if (out.size() == 0) {
      return;
    }
    // The weight as f32, made dense on the stream's thread.
    const T* weight = in.size() > 1 ? in[1].data<T>() : nullptr;
    int64_t weight_step = in.size() > 1 ? in[1].strides(0) : 1;
    dispatch(
        static_cast<uint32_t>(out.size() / n),
        2.0 * out.size(),
        [n, eps = eps_, x = in[0].data<T>(), rows = Rows(in[0]), weight, weight_step, y = out.data<T>()](uint32_t i) {
          float* work = workspace(3 * n);
          int64_t step = rows.step(), w_step = weight_step;
          const float* w = nullptr;
          if (weight != nullptr) {
            w = floats(weight, w_step, n, work);
            if (w_step != 1) {
              for (long j = 0; j < n; j++) {
                work[j] = w[j * w_step];
              }
              w = work;
            }
          }
          const float* from = floats(x + rows(i), step, n, work + n);
          float* to = room(y + i * n, work + 2 * n);
          fused::rms_norm(from, step, w, eps, n, to);
          put(to, n, y + i * n);
        });
  }

  float eps_;
};

} // namespace

std::optional<mx::array> rms_norm(
    const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s) {
  if (x.ndim() == 0 || !is_float(x.dtype())) {
    return std::nullopt;
  }
  Arrays inputs{x};
  if (weight) {
    if (weight->ndim() != 1 || weight->shape(0) != x.shape(-1) || weight->dtype() != x.dtype()) {
      return std::nullopt;
    }
    inputs.push_back(*weight);
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<RmsNorm>(s, eps), std::move(inputs));
}

} // namespace mlxrs::fused
