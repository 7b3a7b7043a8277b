// The nodes of rotary embeddings and of projections that become heads.
#include "heads.h"
#include "ops/norm/norm.h"

#ifdef MLXRS_CUDA
#include "cuda/heads.h"
#endif

namespace mlxrs::ops {
namespace {

class Rope : public NodeWith<RopeOptions> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    const auto& x = in[0];
    auto& y = out[0];
    uint32_t rows = x.shape(0), tokens = x.shape(-2), heads = y.size() / x.shape(-1) / tokens / rows;
    long n = x.shape(-1);
    size_t size = n * y.itemsize();
    // A task is one token of one row, so that the angles are computed once for all its heads.
    dispatch(
        rows * tokens, 4.0 * y.size(),
        [=, angles = Angles(settings_, in[1], in.size() > 2 ? &in[2] : nullptr), rotate = row_kernels(y.dtype()).rotate,
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
    return rope_plainly(in[0], settings_, in[1], in.size() > 2 ? std::make_optional(in[2]) : std::nullopt, stream());
  }

  Arrays derive(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override {
    if (argnums != std::vector<int>{0}) {
      return Node::derive(primals, cotangents, argnums, outputs);
    }
    // The transpose of a rotation is the rotation by the negative angle.
    auto back = settings_;
    back.scale = -back.scale;
    const auto& dy = cotangents[0];
    Arrays inputs = primals;
    inputs[0] = dy;
    return {mx::array(dy.shape(), dy.dtype(), std::make_shared<Rope>(stream(), back), std::move(inputs))};
  }

  const char* name() const override {
    return "Rope";
  }
};

// A projection that becomes heads. Inputs: x, offset, freqs and optionally the norm's weight.
class Heads : public NodeWith<HeadsOptions> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    dispatch(y.shape(0) * y.shape(2), 6.0 * y.size(), HeadsTasks(settings_, in, y));
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    heads_on_cuda(in, out[0], settings_, stream());
  }
#endif

  mx::array plain(const Arrays& in) override {
    return heads_plainly(Projection::of(in, settings_), stream());
  }
  Arrays parts(const Arrays& in) override {
    const auto& x = in[0];
    auto y = mx::reshape(x, {x.shape(0), x.shape(1), x.shape(2) / settings_.dim, settings_.dim}, stream());
    y = mx::swapaxes(y, 1, 2, stream());
    if (in.size() > 3) {
      y = *rms_norm(y, in[3], settings_.eps, stream());
    }
    return {*rope(y, settings_.rope, in[1], in[2], stream())};
  }

  const char* name() const override {
    return "Heads";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {Projection::of(in, settings_).shape()};
  }
};

bool is_usual(
    const RopeOptions& options, int rows, int tokens, int dim, const mx::array& offset, const std::optional<mx::array>& freqs) {
  bool usual = options.dims > 0 && options.dims % 2 == 0 && options.dims <= dim && options.base.has_value() != freqs.has_value() &&
      mx::issubdtype(offset.dtype(), mx::integer);
  if (has_positions(offset)) {
    usual = usual && offset.shape(0) == rows && offset.shape(1) == tokens;
  } else {
    usual = usual && offset.ndim() <= 1 && (offset.size() == 1 || offset.size() == static_cast<size_t>(rows));
  }
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
  // On GPUs only `heads` has a kernel of its own; a rotation alone uses MLX's kernel.
  if (s.device == mx::Device::gpu || x.ndim() < 3 || !is_float(x.dtype()) || !is_usual(options, x.shape(0), x.shape(-2), x.shape(-1), offset, freqs)) {
    return std::nullopt;
  }
  Arrays inputs{x, mx::astype(offset, mx::int32, s)};
  if (freqs) {
    inputs.push_back(*freqs);
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<Rope>(s, options), std::move(inputs));
}

Arrays Projection::inputs(mx::Stream s) const {
  Arrays all;
  append(all, s);
  return all;
}

void Projection::append(Arrays& to, mx::Stream s) const {
  to.reserve(to.size() + 4);
  to.insert(to.end(), {x, mx::astype(offset, mx::int32, s), freqs});
  if (weight) {
    to.push_back(*weight);
  }
}

Projection Projection::of(std::span<const mx::array> inputs, const HeadsOptions& options) {
  return {inputs[0], inputs[1], inputs[2], inputs.size() > 3 ? std::make_optional(inputs[3]) : std::nullopt, options};
}

bool is_usual(const Projection& of) {
  const auto& [x, offset, freqs, weight, options] = of;
  int dim = options.dim;
  return x.ndim() == 3 && is_float(x.dtype()) && dim > 0 && x.shape(2) % dim == 0 &&
      is_usual(options.rope, x.shape(0), x.shape(1), dim, offset, freqs) &&
      (!weight || (weight->ndim() == 1 && weight->shape(0) == dim && weight->dtype() == x.dtype()));
}

std::optional<mx::array> heads(const Projection& of, mx::Stream s) {
  if (!is_usual(of) || !takes(s, of.x) || (s.device == mx::Device::gpu && of.options.dim > most_head)) {
    return std::nullopt;
  }
  return mx::array(of.shape(), of.x.dtype(), std::make_shared<Heads>(s, of.options), of.inputs(s));
}

} // namespace mlxrs::ops
