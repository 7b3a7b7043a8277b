// Launches the kernel of projections that become heads.
#include "heads.h"

#include <algorithm>

namespace mlxrs::ops {

cuda::HeadsArgs heads_args(cuda::Launch& launch, std::span<const mx::array> in, const HeadsOptions& options) {
  const auto& x = in[0];
  cuda::HeadsArgs args{};
  args.x = launch.read_dense(x);
  args.offsets = launch.read_resident<int32_t>(in[1]);
  args.offset_step = in[1].size() > 1 ? 1 : 0;
  args.has_positions = in[1].ndim() == 2;
  args.periods = launch.read_resident<float>(in[2]);
  args.weight = in.size() > 3 ? launch.read_dense(in[3]) : nullptr;
  args.rows = x.shape(0);
  args.tokens = x.shape(1);
  args.heads = x.shape(2) / options.dim;
  args.dim = options.dim;
  args.dims = options.rope.dims;
  args.eps = options.eps;
  auto is_aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  args.is_aligned = is_aligned(args.x) && is_aligned(args.weight);
  args.early = launch.is_old(args.offsets) && launch.is_old(args.periods) && launch.is_old(args.weight);
  return args;
}

unsigned divide_heads(cuda::HeadsArgs& args) {
  // Warps that keep a GPU busy. With more heads than that, a warp computes several heads of a token.
  constexpr int64_t enough_warps = 8192, most_heads = 8;
  int64_t tokens = static_cast<int64_t>(args.rows) * args.tokens;
  args.heads_of_warp = static_cast<int>(std::clamp<int64_t>(tokens * args.heads / enough_warps, 1, most_heads));
  while (args.heads % args.heads_of_warp != 0) {
    args.heads_of_warp--;
  }
  int64_t per_token = args.heads / args.heads_of_warp + (args.slots > 0 ? args.value_heads : 0);
  return cuda::blocks_of(tokens * per_token, heads_threads / 32);
}

void heads_on_cuda(const Arrays& in, mx::array& y, const HeadsOptions& options, mx::Stream s) {
  cuda::allocate(y, s);
  cuda::Launch launch(s);
  auto args = heads_args(launch, in, options);
  args.y = launch.write(y);
  unsigned blocks = divide_heads(args);
  launch.run("rope/heads", std::string("heads_") + cuda::name_of(y.dtype()), dim3(blocks, 1, 1), heads_threads, args);
}

} // namespace mlxrs::ops
