// Launches the kernels that write keys and values into the KV cache.
#include "store.h"

#include <algorithm>

#include "ops/rope/cuda/heads.h"
#include "pack.h"

namespace mlxrs::ops {
namespace {

// Fills in the values and the buffers.
void take_buffers(cuda::Launch& launch, cuda::HeadsArgs& args, const mx::array& values, Arrays& out, bool ring, mx::Stream s) {
  args.values = cuda::heads_of(launch, values, s);
  args.value_heads = values.shape(1);
  args.value_dim = values.shape(3);
  args.slots = out[0].shape(2);
  args.ring = ring;
  args.y = launch.write(out[0]);
  args.value_buffer = launch.write(out[1]);
}

} // namespace

bool store_fits_cuda(int dim, int value_dim, const RowPacking& packing) {
  return packing.bits == 0 || (CudaParts::packed_caches && dim <= cuda::most_packed && value_dim <= cuda::most_packed);
}

void store_on_cuda(
    const mx::array& keys, const mx::array& values, const mx::array& offsets, Arrays& out, const StoreOptions& options, mx::Stream s) {
  cuda::Launch launch(s);
  cuda::HeadsArgs args{};
  auto from = cuda::heads_of(launch, keys, s);
  args.offsets = launch.read_resident<int32_t>(offsets);
  args.offset_step = offsets.size() > 1 ? 1 : 0;
  args.rows = keys.shape(0), args.heads = keys.shape(1), args.tokens = keys.shape(2), args.dim = keys.shape(3);
  take_buffers(launch, args, values, out, options.ring, s);
  auto type = std::string(cuda::name_of(values.dtype()));
  int64_t tasks = static_cast<int64_t>(args.rows) * args.tokens * (args.heads + args.value_heads);
  unsigned blocks = cuda::blocks_of(tasks, 4);
  if (const auto& packing = options.packing; packing.bits > 0) {
    launch.run("store/pack", "store_packed_" + type, blocks, 128, args, from, cuda::PackArgs{packing.bits, packing.group});
    return;
  }
  launch.append_from(args.offsets, args.tokens);
  launch.run("rope/heads", "store_" + type, blocks, heads_threads, args, from);
}

void store_heads_on_cuda(
    const ProjectionInputs& keys, const ProjectionInputs& queries, const mx::array& values, Arrays& out, const StoreOptions& options,
    mx::Stream s) {
  cuda::Launch launch(s);
  auto args = heads_args(launch, keys.in, keys.options);
  take_buffers(launch, args, values, out, options.ring, s);
  launch.append_from(args.offsets, args.tokens);
  unsigned own = divide_heads(args);
  auto kernel = std::string("heads_") + cuda::name_of(values.dtype());
  if (!queries.in.empty()) {
    cuda::allocate(out[2], s);
    auto others = heads_args(launch, queries.in, queries.options);
    others.y = launch.write(out[2]);
    unsigned first = divide_heads(others);
    launch.run("rope/heads", "both_" + kernel, dim3(first + own, 1, 1), heads_threads, others, args, first);
    return;
  }
  args.beside = launch.is_independent();
  args.early = args.early && !args.beside;
  launch.run("rope/heads", kernel, dim3(own, 1, 1), heads_threads, args);
}

void take_rows(cuda::Launch& launch, cuda::FlatArgs& args, const CudaRows& rows, int most) {
  args.starts = launch.read_resident<int32_t>(rows.starts);
  args.tables = launch.read_resident<int32_t>(rows.tables);
  args.columns = rows.tables.shape(1);
  args.rows = rows.tables.shape(0);
  args.most = most;
}

void paged_store_on_cuda(const PagedOnCuda& of, Arrays& out, size_t pools, const RowPacking& packing, mx::Stream s) {
  cuda::Launch launch(s);
  cuda::HeadsArgs args{};
  cuda::Heads from{};
  if (of.keys != nullptr) {
    from = cuda::heads_of(launch, *of.keys, s);
    args.rows = 1, args.heads = of.keys->shape(1), args.tokens = of.keys->shape(2), args.dim = of.keys->shape(3);
  } else {
    args = heads_args(launch, of.projection.in, of.projection.options);
  }
  int rows = of.rows.tables.shape(0);
  take_rows(launch, args.flat, of.rows, std::max(1, (args.tokens + rows - 1) / rows));
  args.lens = launch.read_resident<int32_t>(of.rows.lens);
  args.slots = out[0].shape(2);
  args.y = launch.write(out[0]);
  if (of.values != nullptr) {
    args.values = cuda::heads_of(launch, *of.values, s);
    args.value_heads = of.values->shape(1);
    args.value_dim = of.values->shape(3);
    args.value_buffer = launch.write(out[1]);
  }
  args.early = args.early && launch.is_old(args.flat.starts) && launch.is_old(args.flat.tables) && launch.is_old(args.lens);
  auto type = std::string(cuda::name_of(of.keys != nullptr ? of.keys->dtype() : of.projection.in[0].dtype()));
  if (of.keys != nullptr) {
    unsigned blocks = cuda::blocks_of(static_cast<int64_t>(args.tokens) * (args.heads + args.value_heads), 4);
    if (packing.bits > 0) {
      launch.run("store/pack", "store_packed_" + type, blocks, 128, args, from, cuda::PackArgs{packing.bits, packing.group});
      return;
    }
    launch.append_from(args.lens, args.tokens);
    launch.run("rope/heads", "store_" + type, blocks, heads_threads, args, from);
    return;
  }
  launch.append_from(args.lens, args.tokens);
  unsigned own = divide_heads(args);
  auto kernel = "heads_" + type;
  if (!of.queries.in.empty()) {
    cuda::allocate(out[pools], s);
    auto others = heads_args(launch, of.queries.in, of.queries.options);
    others.y = launch.write(out[pools]);
    unsigned first = divide_heads(others);
    launch.run("rope/heads", "both_" + kernel, dim3(first + own, 1, 1), heads_threads, others, args, first);
    return;
  }
  args.beside = launch.is_independent();
  args.early = args.early && !args.beside;
  launch.run("rope/heads", kernel, dim3(own, 1, 1), heads_threads, args);
}

} // namespace mlxrs::ops
