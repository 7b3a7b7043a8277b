// Launches the attention kernels for packed keys and values, and for large heads.
#include "stored.h"

#include <bit>

#include "attention.h"

namespace mlxrs::ops {

void stored_on_cuda(const Arrays& in, mx::array& y, const AttentionOptions& options, bool sinks, mx::Stream s) {
  cuda::Launch launch(s);
  auto args = attention_args(launch, in, y, options, sinks, s);
  launch_stored(launch, args, in[0], y, options.packing, s);
}

void launch_stored(
    cuda::Launch& launch, cuda::AttentionArgs& args, const mx::array& q, mx::array& y, const RowPacking& packing, mx::Stream s) {
  constexpr int many_blocks = 264, most_parts = 1024;
  bool is_packed = packing.bits > 0;
  cuda::StoredHeads of{q.shape(3), y.shape(3), is_packed ? std::countr_zero(static_cast<unsigned>(packing.group)) : 0};
  int largest = std::max(of.dim, of.value_dim), padded = !is_packed ? 512 : largest <= 64 ? 64 : largest <= 128 ? 128 : 256;
  // With enough tiles of queries, each block goes through all keys. With few tiles, the keys are divided among blocks
  // too.
  int tiles = static_cast<int>(cuda::blocks_of(static_cast<int64_t>(args.tokens) * (args.heads / args.kv_heads), cuda::stored_queries));
  int64_t blocks = static_cast<int64_t>(tiles) * args.kv_heads * args.rows;
  int parts = static_cast<int>(cuda::blocks_of(args.slots, cuda::stored_slots));
  args.parts = blocks >= many_blocks || parts > most_parts ? 1 : parts;
  auto type = std::string(cuda::name_of(q.dtype())), size = std::to_string(padded);
  const char* module = is_packed ? "attention/packed" : "attention/wide";
  auto kernel = (is_packed ? "packed" + std::to_string(packing.bits) : std::string("wide")) + "_" + type + "_" + size;
  auto grid = [&](int x) { return dim3(static_cast<unsigned>(x), static_cast<unsigned>(args.kv_heads), static_cast<unsigned>(args.rows)); };
  unsigned shared = static_cast<unsigned>(cuda::stored_bytes(is_packed ? padded : 576, padded));
  if (args.parts == 1) {
    launch.run_with(shared, module, kernel, grid(tiles), is_packed ? 128 : 256, args, of);
    return;
  }
  auto partial = cuda::scratch(sizeof(float) * blocks * parts * cuda::stored_partial(padded), s);
  launch.keep(partial);
  args.partial = launch.write<float>(partial);
  launch.run_with(shared, module, kernel, grid(tiles * parts), is_packed ? 128 : 256, args, of);
  cuda::Launch join(s);
  join.read(partial);
  join.write(y);
  join.run(module, "join_" + type + "_" + size, grid(tiles * (padded / 32)), 128, args, of);
}

} // namespace mlxrs::ops
