// Launches the kernel of causal convolutions.
#include "conv.h"

#include "cuda/launch.h"
#include "ops/delta/cuda/args.h"

namespace mlxrs::ops {

void conv_on_cuda(const Arrays& in, bool silu, mx::array& y, mx::Stream s) {
  cuda::allocate(y, s);
  cuda::Launch launch(s);
  cuda::ConvArgs args{};
  args.x = launch.read_dense(in[0]);
  args.taps = launch.read_dense(in[1]);
  args.bias = in.size() > 2 ? launch.read_dense(in[2]) : nullptr;
  args.y = launch.write(y);
  args.rows = y.shape(0), args.tokens = y.shape(1), args.channels = y.shape(2);
  args.count = in[1].shape(0);
  args.silu = silu;
  unsigned blocks = std::min(cuda::blocks_of(static_cast<int64_t>(y.size()), 256), 8192u);
  launch.run("conv/conv", std::string("conv_") + cuda::name_of(y.dtype()), blocks, 256, args);
}

} // namespace mlxrs::ops
