// Launches the kernels of routers and weighted sums.
#include "route.h"

#include "args.h"
#include "cuda/launch.h"

namespace mlxrs::ops {

bool route_fits_cuda(
    const mx::array& scores, const std::optional<mx::array>& correction, const RouteOptions& options, mx::Stream s) {
  bool fits = CudaParts::routers && s.device == mx::Device::gpu && is_float(scores.dtype()) && !scores.is_tracer() && scores.size() > 0 &&
      scores.shape(1) <= cuda::most_routed && options.groups <= cuda::most_groups && options.top_k <= cuda::most_chosen;
  auto is_usual = [&](const mx::array& a) { return a.dtype() == mx::float32 && !a.is_tracer() && static_cast<int>(a.size()) == scores.shape(1); };
  return fits && (!correction || is_usual(*correction));
}

void route_on_cuda(const Arrays& in, Arrays& out, const RouteOptions& options, mx::Stream s) {
  for (auto& y : out) {
    cuda::allocate(y, std::max<size_t>(y.nbytes(), 16), s);
  }
  cuda::Launch launch(s);
  cuda::RouteArgs args{};
  args.scores = launch.read_dense(in[0]);
  args.correction = in.size() > 1 ? launch.read_dense<float>(in[1]) : nullptr;
  args.chosen = launch.write<uint32_t>(out[0]);
  args.weights = launch.write<float>(out[1]);
  args.tokens = in[0].shape(0), args.experts = in[0].shape(1), args.top_k = options.top_k;
  args.groups = options.groups, args.top_groups = options.top_groups;
  args.sigmoid = options.sigmoid, args.norm = options.norm, args.two_best = options.two_best;
  args.added = options.added, args.least_sum = options.least_sum, args.scale = options.scale;
  launch.run("route/route", std::string("route_") + cuda::name_of(in[0].dtype()), cuda::blocks_of(args.tokens, 4), 128, args);
}

void weighted_sum_on_cuda(const Arrays& in, mx::array& sum, mx::Stream s) {
  cuda::allocate(sum, s);
  cuda::Launch launch(s);
  cuda::WeightedArgs args{launch.read_dense(in[0]), launch.read_dense<float>(in[1]), launch.write(sum), in[0].shape(1), in[0].shape(2),
                          static_cast<int64_t>(sum.size())};
  unsigned blocks = std::min(cuda::blocks_of(args.all, 256), 8192u);
  launch.run("route/route", std::string("weighted_") + cuda::name_of(sum.dtype()), blocks, 256, args);
}

} // namespace mlxrs::ops
