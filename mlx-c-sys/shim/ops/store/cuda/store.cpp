// Launches the kernels that write keys and values into the KV cache.
#include "store.h"

#include "ops/rope/cuda/heads.h"
#include "pack.h"

namespace mlxrs::ops {

bool store_fits_cuda(int dim, int value_dim, const RowPacking& packing) {
  return packing.bits == 0 || (CudaParts::packed_caches && dim <= cuda::most_packed && value_dim <= cuda::most_packed);
}

void store_on_cuda(
    std::span<const mx::array> keys, const std::optional<HeadsOptions>& heads, const mx::array& values, const mx::array& offsets,
    Arrays& out, const StoreOptions& options, mx::Stream s) {
  const auto& packing = options.packing;
  auto queries = heads && packing.bits == 0 ? cuda::take_heads() : std::nullopt;
  cuda::Launch launch(s);
  cuda::HeadsArgs args{};
  cuda::Heads from{};
  if (heads) {
    args = heads_args(launch, keys, *heads);
  } else {
    const auto& k = keys[0];
    from = cuda::heads_of(launch, k, s);
    args.offsets = launch.read_resident<int32_t>(offsets);
    args.offset_step = offsets.size() > 1 ? 1 : 0;
    args.rows = k.shape(0), args.heads = k.shape(1), args.tokens = k.shape(2), args.dim = k.shape(3);
  }
  args.values = cuda::heads_of(launch, values, s);
  args.value_heads = values.shape(1);
  args.value_dim = values.shape(3);
  args.slots = out[0].shape(2);
  args.ring = options.ring;
  args.y = launch.write(out[0]);
  args.value_buffer = launch.write(out[1]);
  auto type = std::string(cuda::name_of(values.dtype()));
  int64_t tasks = static_cast<int64_t>(args.rows) * args.tokens * (args.heads + args.value_heads);
  unsigned blocks = cuda::blocks_of(tasks, 4);
  if (packing.bits > 0) {
    launch.run("store/pack", "store_packed_" + type, blocks, 128, args, from, cuda::PackArgs{packing.bits, packing.group});
    return;
  }
  launch.append_from(args.offsets, args.tokens);
  if (!heads) {
    launch.run("rope/heads", "store_" + type, blocks, heads_threads, args, from);
    return;
  }
  unsigned own = divide_heads(args);
  auto kernel = "heads_" + type;
  if (queries && queries->kernel == kernel && launch.is_apart_from(queries->launch)) {
    launch.include(queries->launch);
    launch.run(
        "rope/heads", "both_" + kernel, dim3(queries->blocks.x + own, 1, 1), heads_threads, std::get<cuda::HeadsArgs>(queries->args), args,
        queries->blocks.x);
    return;
  }
  if (queries) {
    queries->run();
  }
  args.beside = launch.is_independent();
  args.early = args.early && !args.beside && !queries;
  launch.run("rope/heads", kernel, dim3(own, 1, 1), heads_threads, args);
}

} // namespace mlxrs::ops
