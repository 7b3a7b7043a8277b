#include "mlx/fast.h"

#include "heads.h"

namespace mlxrs::fused {
namespace {

bool same(const RopeOptions& a, const RopeOptions& b) {
  return a.dims == b.dims && a.traditional == b.traditional && a.base == b.base && a.scale == b.scale;
}

mx::array rope_plainly(const RopeOptions& options, const Arrays& in, mx::Stream s) {
  const auto& [dims, traditional, base, scale] = options;
  auto freqs = in.size() > 2 ? std::make_optional(in[2]) : std::nullopt;
  return mx::fast::rope(in[0], dims, traditional, base, scale, in[1], freqs, s);
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
    dispatch(
        rows * tokens, 4.0 * y.size(),
        [=, angles = Angles(options_, in[1], in.size() > 2 ? &in[2] : nullptr), rotate = row_kernels(y.dtype()).rotate,
         xs = Vectors(x), to = y.data<char>()](uint32_t task) {
          uint32_t row = task / tokens, token = task % tokens;
          float* work = workspace(angles.work_size() + n);
          auto rotation = angles.of(row, token, n, work);
          for (uint32_t head = 0; head < heads; head++) {
            uint32_t i = (row * heads + head) * tokens + token;
            rotate(rotation, xs(i, work + angles.work_size()), to + i * size);
          }
        });
  }

  mx::array plain(const Arrays& in) override {
    return rope_plainly(options_, in, stream());
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

 private:
  RopeOptions options_;
};

// From a projection to heads. Inputs: x, offset, freqs, and the norm's weight if there is one.
class Heads : public Node {
 public:
  Heads(mx::Stream s, HeadsOptions options) : Node(s), options_(options) {}

  const HeadsOptions& options() const {
    return options_;
  }

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    y.set_data(mx::allocator::malloc(y.nbytes()));
    if (y.size() == 0) {
      return;
    }
    uint32_t heads = y.shape(1), tokens = y.shape(2);
    dispatch(
        y.shape(0) * tokens, 6.0 * y.size(),
        [=, write = TokenHeads(options_, in), to = y.data<char>(), size = options_.dim * y.itemsize()](uint32_t task) {
          uint32_t row = task / tokens, token = task % tokens;
          write(row, token, tokens, [&](uint32_t head) { return to + ((row * heads + head) * tokens + token) * size; });
        });
  }

  mx::array plain(const Arrays& in) override {
    return heads_plainly(options_, in, stream());
  }
  Arrays parts(const Arrays& in) override {
    auto y = apart(options_, in, stream());
    if (options_.norm) {
      y = *rms_norm(y, in.back(), options_.eps, stream());
    }
    return {*rope(y, options_.rope, in[1], in[2], stream())};
  }

  // [B, L, H dim] -> [B, H, L, dim], a view.
  static mx::array apart(const HeadsOptions& options, const Arrays& in, mx::Stream s) {
    const auto& x = in[0];
    auto y = mx::reshape(x, {x.shape(0), x.shape(1), x.shape(2) / options.dim, options.dim}, s);
    return mx::swapaxes(y, 1, 2, s);
  }

  const char* name() const override {
    return "Heads";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const Heads&>(other).options_;
    return same(options_.rope, that.rope) && options_.dim == that.dim && options_.norm == that.norm && options_.eps == that.eps;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    const auto& x = in[0];
    return {{x.shape(0), x.shape(2) / options_.dim, x.shape(1), options_.dim}};
  }

 private:
  HeadsOptions options_;
};

bool is_usual(
    const RopeOptions& options, int rows, int dim, const mx::array& offset, const std::optional<mx::array>& freqs) {
  bool usual = options.dims > 0 && options.dims % 2 == 0 && options.dims <= dim && options.base.has_value() != freqs.has_value() &&
      mx::issubdtype(offset.dtype(), mx::integer) && offset.ndim() <= 1 &&
      (offset.size() == 1 || offset.size() == static_cast<size_t>(rows));
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
  Arrays inputs{x, mx::astype(offset, mx::int32, s)};
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
  Arrays inputs{x, mx::astype(offset, mx::int32, s), freqs};
  if (weight) {
    inputs.push_back(*weight);
  }
  mx::Shape shape{x.shape(0), x.shape(2) / dim, x.shape(1), dim};
  auto node = std::make_shared<Heads>(s, HeadsOptions{options, dim, weight.has_value(), eps});
  return mx::array(std::move(shape), x.dtype(), std::move(node), std::move(inputs));
}

std::optional<MadeHeads> made_heads(const mx::array& y, mx::Stream s) {
  auto node = uncomputed<Heads>(y, s);
  return node != nullptr ? std::optional(MadeHeads{node->options(), y.inputs()}) : std::nullopt;
}

mx::array heads_plainly(const HeadsOptions& options, const Arrays& in, mx::Stream s) {
  auto y = Heads::apart(options, in, s);
  if (options.norm) {
    y = mx::fast::rms_norm(y, in.back(), options.eps, s);
  }
  return rope_plainly(options.rope, {y, in[1], in[2]}, s);
}

} // namespace mlxrs::fused
