#include <cmath>

#include "mlx/fast.h"

#include "kernels.h"
#include "node.h"

namespace mlxrs::fused {
namespace {

class Rope : public Node {
 public:
  Rope(mx::Stream s, RopeOptions options) : Node(s), options_(options) {}

  void eval_cpu(const Arrays& in, Arrays& out) override {
    out[0].set_data(mx::allocator::malloc(out[0].nbytes()));
    with_type(out[0].dtype(), [&](auto type) { run<decltype(type)>(in, out[0]); });
  }

  mx::array plain(const Arrays& in) override {
    const auto& [dims, traditional, base, scale] = options_;
    auto freqs = in.size() > 2 ? std::make_optional(in[2]) : std::nullopt;
    return mx::fast::rope(in[0], dims, traditional, base, scale, in[1], freqs, stream());
  }

  const char* name() const override {
    return "Rope";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const Rope&>(other).options_;
    return options_.dims == that.dims && options_.traditional == that.traditional && options_.base == that.base &&
        options_.scale == that.scale;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[0].shape()};
  }

 private:
  template <typename T>
  void run(const Arrays& in, mx::array& out) {
    if (out.size() == 0) {
      return;
    }
    const auto &x = in[0], &offset = in[1];
    uint32_t rows = x.shape(0), tokens = x.shape(-2), heads = out.size() / x.shape(-1) / tokens / rows;
    long n = x.shape(-1);
    int64_t offset_step = offset.size() > 1 ? offset.strides(0) : 0;
    const float* freqs = in.size() > 2 ? in[2].data<float>() : nullptr;
    int64_t freq_step = freqs != nullptr ? in[2].strides(0) : 0;
    // A task is one token of one row: the angles are the same for all its heads.
    dispatch(
        rows * tokens,
        4.0 * out.size(),
        [=, this_options = options_, from = x.data<T>(), places = Rows(x), at = offset.data<int32_t>(),
         to = out.data<T>()](uint32_t task) {
          uint32_t row = task / tokens, token = task % tokens;
          long half = this_options.dims / 2;
          float* work = workspace(2 * half + 2 * n);
          float *cos = work, *sin = work + half;
          float position = static_cast<float>(token) + static_cast<float>(at[row * offset_step]);
          position *= this_options.scale;
          for (long i = 0; i < half; i++) {
            float inverse = freqs != nullptr
                ? 1.0f / freqs[i * freq_step]
                : std::exp(-static_cast<float>(i) * (std::log(*this_options.base) / static_cast<float>(half)));
            float angle = position * inverse;
            cos[i] = std::cos(angle);
            sin[i] = std::sin(angle);
          }
          for (uint32_t head = 0; head < heads; head++) {
            uint32_t i = (row * heads + head) * tokens + token;
            int64_t step = places.step();
            const float* x = floats(from + places(i), step, n, work + 2 * half);
            float* y = room(to + int64_t(i) * n, work + 2 * half + n);
            rotate({n, half, this_options.traditional, cos, sin}, x, step, y);
            put(y, n, to + int64_t(i) * n);
          }
        });
  }

  RopeOptions options_;
};

} // namespace

std::optional<mx::array> rope(
    const mx::array& x,
    const RopeOptions& options,
    const mx::array& offset,
    const std::optional<mx::array>& freqs,
    mx::Stream s) {
  int dims = options.dims;
  bool usual = x.ndim() >= 3 && is_float(x.dtype()) && dims > 0 && dims % 2 == 0 && dims <= x.shape(-1);
  usual = usual && offset.dtype() == mx::int32 && offset.ndim() <= 1 &&
      (offset.size() == 1 || offset.size() == static_cast<size_t>(x.shape(0)));
  usual = usual && options.base.has_value() != freqs.has_value();
  if (usual && freqs) {
    usual = freqs->ndim() == 1 && freqs->shape(0) == dims / 2 && freqs->dtype() == mx::float32;
  }
  if (!usual) {
    return std::nullopt;
  }
  Arrays inputs{x, offset};
  if (freqs) {
    inputs.push_back(*freqs);
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<Rope>(s, options), std::move(inputs));
}

} // namespace mlxrs::fused
