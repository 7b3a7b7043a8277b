#include <cmath>

#include "mlx/fast.h"

#include "kernels.h"
#include "node.h"

namespace mlxrs::fused {
namespace {

// The angles of tokens, for any thread: on the stream's thread only pointers are known.
class Angles {
 public:
  Angles(const RopeOptions& options, const mx::array& offset, const mx::array* freqs)
      : options_(options), at_(offset.data<int32_t>()), step_(offset.size() > 1 ? offset.strides(0) : 0),
        freqs_(freqs != nullptr ? freqs->data<float>() : nullptr), freq_step_(freqs != nullptr ? freqs->strides(0) : 0) {}

  long half() const {
    return options_.dims / 2;
  }
  // For all tokens: `half` frequencies.
  std::vector<float> frequencies() const {
    std::vector<float> result(half());
    for (long i = 0; i < half(); i++) {
      result[i] = freqs_ != nullptr
          ? 1.0f / freqs_[i * freq_step_]
          : std::exp(-static_cast<float>(i) * (std::log(*options_.base) / static_cast<float>(half())));
    }
    return result;
  }
  // The rotation of one token of one row; `work` has room for 2 half.
  Rotation of(uint32_t row, uint32_t token, const std::vector<float>& frequencies, long n, float* work) const {
    float position = static_cast<float>(token) + static_cast<float>(at_[row * step_]);
    kernels().angles(position * options_.scale, frequencies.data(), half(), work, work + half());
    return {n, half(), options_.traditional, work, work + half()};
  }

 private:
  RopeOptions options_;
  const int32_t* at_;
  int64_t step_;
  const float* freqs_;
  int64_t freq_step_;
};

bool same(const RopeOptions& a, const RopeOptions& b) {
  return a.dims == b.dims && a.traditional == b.traditional && a.base == b.base && a.scale == b.scale;
}

class Rope : public Node {
 public:
  Rope(mx::Stream s, RopeOptions options) : Node(s), options_(options) {}

  void encode(const Arrays& in, Arrays& out) override {
    const auto& x = in[0];
    auto& y = out[0];
    y.set_data(mx::allocator::malloc(y.nbytes()));
    if (y.size() == 0) {
      return;
    }
    uint32_t rows = x.shape(0), tokens = x.shape(-2), heads = y.size() / x.shape(-1) / tokens / rows;
    long n = x.shape(-1);
    size_t size = n * y.itemsize();
    // A task is one token of one row: the angles are the same for all its heads.
    tasks(
        rows * tokens, 4.0 * y.size(), Angles(options_, in[1], in.size() > 2 ? &in[2] : nullptr),
        [=, rotate = row_kernels(y.dtype()).rotate, xs = Vectors(x), to = y.data<char>()](
            uint32_t task, const Angles& angles, const std::vector<float>& frequencies) {
          uint32_t row = task / tokens, token = task % tokens;
          float* work = workspace(2 * angles.half() + n);
          auto rotation = angles.of(row, token, frequencies, n, work);
          for (uint32_t head = 0; head < heads; head++) {
            uint32_t i = (row * heads + head) * tokens + token;
            rotate(rotation, xs(i, work + 2 * angles.half()), to + i * size);
          }
        });
  }

  mx::array plain(const Arrays& in) override {
    const auto& [dims, traditional, base, scale] = options_;
    auto freqs = in.size() > 2 ? std::make_optional(in[2]) : std::nullopt;
    return mx::fast::rope(in[0], dims, traditional, base, scale, in[1], freqs, stream());
  }

  Arrays vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override {
    if (argnums != std::vector<int>{0}) {
      return Node::vjp(primals, cotangents, argnums, outputs);
    }
    // A rotation's transpose turns back.
    auto back = options_;
    back.scale = -back.scale;
    const auto& dy = cotangents[0];
    Arrays inputs = primals;
    inputs[0] = dy;
    return {mx::array(dy.shape(), dy.dtype(), std::make_shared<Rope>(stream(), back), std::move(inputs))};
  }

  const char* name() const override {
    return "Rope";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    return same(options_, static_cast<const Rope&>(other).options_);
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[0].shape()};
  }

 protected:
  // Calls body(task, angles, frequencies); the frequencies are worked out once for all tasks.
  template <typename Body>
  void tasks(uint32_t n, double work, Angles angles, Body body) {
    dispatch(
        n, work, [angles, body = std::move(body), frequencies = std::make_shared<Once>()](uint32_t task) {
          body(task, angles, frequencies->get(angles));
        });
  }

 private:
  struct Once {
    std::once_flag flag;
    std::vector<float> frequencies;
    const std::vector<float>& get(const Angles& angles) {
      std::call_once(flag, [&] { frequencies = angles.frequencies(); });
      return frequencies;
    }
  };

 protected:
  RopeOptions options_;
};

// From a projection to heads. Inputs: x, offset, freqs, and the norm's weight if there is one.
class Heads : public Rope {
 public:
  Heads(mx::Stream s, RopeOptions options, int dim, bool norm, float eps)
      : Rope(s, options), dim_(dim), norm_(norm), eps_(eps) {}

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    y.set_data(mx::allocator::malloc(y.nbytes()));
    if (y.size() == 0) {
      return;
    }
    uint32_t heads = y.shape(1), tokens = y.shape(2);
    long n = dim_;
    size_t size = n * y.itemsize();
    const auto& rows = row_kernels(y.dtype());
    const mx::array* weight = norm_ ? &in.back() : nullptr;
    tasks(
        y.shape(0) * tokens, 6.0 * y.size(), Angles(options_, in[1], &in[2]),
        [=, eps = eps_, rotate = rows.rotate, norm = rows.rms_norm, xs = Vectors(in[0]),
         w = weight != nullptr ? weight->data<char>() : nullptr,
         w_step = weight != nullptr ? weight->strides(0) : 1, to = y.data<char>(), itemsize = y.itemsize()](
            uint32_t task, const Angles& angles, const std::vector<float>& frequencies) {
          uint32_t row = task / tokens, token = task % tokens;
          float* work = workspace(2 * angles.half() + n + n * heads);
          auto rotation = angles.of(row, token, frequencies, n, work);
          float* dense = work + 2 * angles.half();
          const char* weight = w;
          if (w != nullptr && w_step != 1) {
            Vectors::gather(w, w_step, n, itemsize, dense);
            weight = reinterpret_cast<const char*>(dense);
          }
          const char* x = xs(task, dense + n);
          for (uint32_t head = 0; head < heads; head++) {
            char* y = to + ((row * heads + head) * tokens + token) * size;
            if (weight != nullptr) {
              norm(x + head * size, weight, eps, n, y);
              rotate(rotation, y, y);
            } else {
              rotate(rotation, x + head * size, y);
            }
          }
        });
  }

  mx::array plain(const Arrays& in) override {
    const auto& x = in[0];
    auto y = mx::reshape(x, {x.shape(0), x.shape(1), x.shape(2) / dim_, dim_}, stream());
    y = mx::swapaxes(y, 1, 2, stream());
    if (norm_) {
      y = mx::fast::rms_norm(y, in.back(), eps_, stream());
    }
    return Rope::plain({y, in[1], in[2]});
  }

  Arrays vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override {
    return Node::vjp(primals, cotangents, argnums, outputs);
  }
  Arrays parts(const Arrays& in) override {
    const auto& x = in[0];
    auto y = mx::reshape(x, {x.shape(0), x.shape(1), x.shape(2) / dim_, dim_}, stream());
    y = mx::swapaxes(y, 1, 2, stream());
    if (norm_) {
      y = *rms_norm(y, in.back(), eps_, stream());
    }
    return {*rope(y, options_, in[1], in[2], stream())};
  }

  const char* name() const override {
    return "Heads";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const Heads&>(other);
    return same(options_, that.options_) && dim_ == that.dim_ && norm_ == that.norm_ && eps_ == that.eps_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    const auto& x = in[0];
    return {{x.shape(0), x.shape(2) / dim_, x.shape(1), dim_}};
  }

 private:
  int dim_;
  bool norm_;
  float eps_;
};

bool is_usual(
    const RopeOptions& options, int rows, int dim, const mx::array& offset, const std::optional<mx::array>& freqs) {
  bool usual = options.dims > 0 && options.dims % 2 == 0 && options.dims <= dim && offset.dtype() == mx::int32 &&
      offset.ndim() <= 1 && (offset.size() == 1 || offset.size() == static_cast<size_t>(rows)) &&
      options.base.has_value() != freqs.has_value();
  if (usual && freqs) {
    usual = freqs->ndim() == 1 && freqs->shape(0) == options.dims / 2 && freqs->dtype() == mx::float32;
  }
  return usual;
}

} // namespace

std::optional<mx::array> rope(
    const mx::array& x,
    const RopeOptions& options,
    const mx::array& offset,
    const std::optional<mx::array>& freqs,
    mx::Stream s) {
  if (x.ndim() < 3 || !is_float(x.dtype()) || !is_usual(options, x.shape(0), x.shape(-1), offset, freqs)) {
    return std::nullopt;
  }
  Arrays inputs{x, offset};
  if (freqs) {
    inputs.push_back(*freqs);
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<Rope>(s, options), std::move(inputs));
}

std::optional<mx::array> heads(
    const mx::array& x,
    int dim,
    const std::optional<mx::array>& weight,
    float eps,
    const RopeOptions& options,
    const mx::array& offset,
    const mx::array& freqs,
    mx::Stream s) {
  bool usual = x.ndim() == 3 && is_float(x.dtype()) && dim > 0 && x.shape(2) % dim == 0 &&
      is_usual(options, x.shape(0), dim, offset, freqs);
  usual = usual && (!weight || (weight->ndim() == 1 && weight->shape(0) == dim && weight->dtype() == x.dtype()));
  if (!usual) {
    return std::nullopt;
  }
  Arrays inputs{x, offset, freqs};
  if (weight) {
    inputs.push_back(*weight);
  }
  mx::Shape shape{x.shape(0), x.shape(2) / dim, x.shape(1), dim};
  auto node = std::make_shared<Heads>(s, options, dim, weight.has_value(), eps);
  return mx::array(std::move(shape), x.dtype(), std::move(node), std::move(inputs));
}

} // namespace mlxrs::fused
