// Launches the kernel of causal convolutions.
#include "conv.h"

#include "cuda/launch.h"
#include "ops/delta/cuda/rows.h"

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

void ragged_conv_on_cuda(const Arrays& in, bool silu, const Ragged& rows, Arrays& out, mx::Stream s) {
  auto& y = out[0];
  cuda::allocate(y, s);
  cuda::Launch launch(s);
  cuda::RaggedConvArgs args{};
  args.rows = cuda::rows_of(launch, rows);
  args.x = launch.read_dense(in[0]);
  args.taps = launch.read_dense(in[1]);
  args.bias = in.size() > 2 ? launch.read_dense(in[2]) : nullptr;
  args.y = launch.write(y);
  args.pool = rows.settings.has_pool ? launch.write(out[1]) : nullptr;
  args.tokens = y.shape(1), args.channels = y.shape(2);
  args.count = in[1].shape(0);
  args.silu = silu;
  // Blocks for the pieces of the longest row, but not so many that most of them have none.
  unsigned groups = cuda::blocks_of(args.channels, 256), each = groups * (args.rows.count + 1);
  unsigned pieces = cuda::blocks_of(rows.settings.longest, cuda::ragged_conv_tokens);
  pieces = std::min(pieces, std::max(8192u / each, 1u));
  launch.run(
      "conv/ragged", std::string("ragged_conv_") + cuda::name_of(y.dtype()), dim3(groups, args.rows.count + 1, pieces), 256, args);
}

} // namespace mlxrs::ops
