// The nodes of routers and of weighted sums. They exist for NVIDIA GPUs only; CPUs use the plain form.
#include "route.h"

#ifdef MLXRS_CUDA

#include "cuda/route.h"

namespace mlxrs::ops {
namespace {

class Route : public NodeWith<RouteOptions> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays&, Arrays&) override {
    throw std::logic_error("routers are nodes on GPUs only");
  }
  void encode_cuda(const Arrays& in, Arrays& out) override {
    route_on_cuda(in, out, settings_, stream());
  }
  Arrays plain_all(const Arrays& in) override {
    return route_plainly(in[0], in.size() > 1 ? std::make_optional(in[1]) : std::nullopt, settings_, stream());
  }
  const char* name() const override {
    return "Route";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    mx::Shape shape{in[0].shape(0), settings_.top_k};
    return {shape, shape};
  }
};

class WeightedSum : public NodeWith<> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays&, Arrays&) override {
    throw std::logic_error("weighted sums are nodes on GPUs only");
  }
  void encode_cuda(const Arrays& in, Arrays& out) override {
    weighted_sum_on_cuda(in, out[0], stream());
  }
  mx::array plain(const Arrays& in) override {
    return weighted_sum_plainly(in[0], in[1], stream());
  }
  const char* name() const override {
    return "WeightedSum";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {{in[0].shape(0), in[0].shape(2)}};
  }
};

} // namespace

std::optional<Arrays> route(
    const mx::array& scores, const std::optional<mx::array>& correction, const RouteOptions& options, mx::Stream s) {
  if (!route_fits_cuda(scores, correction, options, s)) {
    return std::nullopt;
  }
  auto node = std::make_shared<Route>(s, options);
  Arrays inputs{scores};
  if (correction) {
    inputs.push_back(*correction);
  }
  auto shapes = node->output_shapes(inputs);
  return mx::array::make_arrays(std::move(shapes), {mx::uint32, mx::float32}, std::move(node), std::move(inputs));
}

std::optional<mx::array> weighted_sum(const mx::array& y, const mx::array& weights, mx::Stream s) {
  bool fits = CudaParts::routers && s.device == mx::Device::gpu && takes(s, y) && y.ndim() == 3 && weights.dtype() == mx::float32 &&
      !weights.is_tracer() && weights.shape() == mx::Shape{y.shape(0), y.shape(1)};
  if (!fits) {
    return std::nullopt;
  }
  return mx::array({y.shape(0), y.shape(2)}, y.dtype(), std::make_shared<WeightedSum>(s), {y, weights});
}

} // namespace mlxrs::ops

#else

namespace mlxrs::ops {

std::optional<Arrays> route(const mx::array&, const std::optional<mx::array>&, const RouteOptions&, mx::Stream) {
  return std::nullopt;
}

std::optional<mx::array> weighted_sum(const mx::array&, const mx::array&, mx::Stream) {
  return std::nullopt;
}

} // namespace mlxrs::ops

#endif
