// Launches the kernels of sampling.
#include "draw.h"

#include <algorithm>

#include "cuda/launch.h"

namespace mlxrs::ops {

namespace {

// Launches a kernel of rows of logits. The blocks of a row are a cluster, so GPUs before Hopper use one block for a row.
// Their number depends only on the GPU and on `n`, because the order of sums depends on it.
void launch_rows(cuda::Launch& launch, const std::string& kernel, int64_t rows, const cuda::DrawArgs& args) {
  constexpr int many_ids = 8192;
  unsigned blocks = launch.generation() >= 9 && args.n >= many_ids ? cuda::cluster_blocks : 1;
  if (blocks > 1) {
    launch.use_clusters(blocks);
  }
  launch.run("sample/draw", kernel, dim3(static_cast<unsigned>(rows), blocks, 1), 1024, args);
}

} // namespace

void draw_on_cuda(const Arrays& in, Arrays& out, mx::Stream s) {
  auto &ids = out[0], &checked = out[1];
  // At least 16 bytes: MLX puts smaller arrays into managed memory. The host reading another array of the same page
  // would then cause page faults.
  cuda::allocate(ids, std::max<size_t>(ids.nbytes(), 16), s);
  // The host reads this array at the end of each step, so it is in pinned host memory.
  checked.set_data(cuda::host_memory(checked.nbytes()));
  cuda::Launch launch(s);
  cuda::DrawArgs args{};
  args.x = launch.read_dense(in[0]);
  args.keys = launch.read_dense<uint32_t>(in[1]);
  args.numbers = launch.read_dense<float>(in[2]);
  args.counts = launch.read_dense<int32_t>(in[3]);
  args.y = launch.write<uint32_t>(checked);
  args.ids = launch.write<uint32_t>(ids);
  args.n = in[0].shape(1);
  launch_rows(launch, std::string("draw_") + cuda::name_of(in[0].dtype()), in[0].shape(0), args);
}

void logsumexp_on_cuda(const mx::array& x, bool places, mx::array& y, mx::Stream s) {
  cuda::allocate(y, s);
  cuda::Launch launch(s);
  cuda::DrawArgs args{};
  args.x = launch.read_dense(x);
  args.y = launch.write<uint32_t>(y);
  args.n = x.shape(-1);
  args.counts = places ? nullptr : reinterpret_cast<const int32_t*>(args.x);
  launch_rows(launch, std::string("logsumexp_") + cuda::name_of(x.dtype()), static_cast<int64_t>(y.size()), args);
}

} // namespace mlxrs::ops
