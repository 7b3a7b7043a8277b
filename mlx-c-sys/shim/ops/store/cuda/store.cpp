#include "store.h"

#include "ops/rope/cuda/heads.h"

namespace mlxrs::ops {
namespace {

// Where the heads of an array [B, H, L, D] are, and a copy if their elements are apart.
cuda::Heads heads_of(cuda::Launch& launch, const mx::array& given, mx::Stream s) {
  auto a = given.strides(3) == 1 || given.shape(3) == 1 ? given : cuda::dense(given, s);
  launch.keep(a);
  return {launch.read(a), a.strides(0), a.strides(1), a.strides(2)};
}

} // namespace

void store_on_cuda(
    std::span<const mx::array> keys, const std::optional<HeadsOptions>& options, const mx::array& values, const mx::array& offsets,
    Arrays& out, bool ring, mx::Stream s) {
  cuda::Launch launch(s);
  cuda::HeadsArgs args{};
  cuda::Heads from{};
  if (options) {
    args = heads_args(launch, keys, *options);
  } else {
    const auto& k = keys[0];
    from = heads_of(launch, k, s);
    args.offsets = launch.read_resident<int32_t>(offsets);
    args.offset_step = offsets.size() > 1 ? 1 : 0;
    args.rows = k.shape(0), args.heads = k.shape(1), args.tokens = k.shape(2), args.dim = k.shape(3);
  }
  args.values = heads_of(launch, values, s);
  args.value_heads = values.shape(1);
  args.value_dim = values.shape(3);
  args.slots = out[0].shape(2);
  args.ring = ring;
  args.y = launch.write(out[0]);
  args.value_buffer = launch.write(out[1]);
  auto type = std::string(cuda::name_of(values.dtype()));
  int64_t tasks = static_cast<int64_t>(args.rows) * args.tokens * (args.heads + args.value_heads);
  unsigned blocks = cuda::blocks_of(tasks, 4);
  if (options) {
    launch.run("rope/heads", "heads_" + type, blocks, 128, args);
  } else {
    launch.run("rope/heads", "store_" + type, blocks, 128, args, from);
  }
}

} // namespace mlxrs::ops
