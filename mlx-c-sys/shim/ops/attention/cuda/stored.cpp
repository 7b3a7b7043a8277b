#include "stored.h"

#include <bit>

#include "attention.h"

namespace mlxrs::ops {
namespace {

// Where the heads of [B, H, L, D] are, and a copy if their elements are apart. Elements of 2 bytes are read 16 bytes at a time.
cuda::Heads stored_heads(cuda::Launch& launch, const mx::array& given, mx::Stream s) {
  int64_t unit = given.itemsize() == 2 ? 8 : 1;
  bool is_dense = given.strides(3) == 1 && (given.offset() % 16 == 0 || unit == 1);
  for (int axis = 0; axis < 3; axis++) {
    is_dense = is_dense && given.strides(axis) % unit == 0;
  }
  if (is_dense) {
    return {launch.read(given), given.strides(0), given.strides(1), given.strides(2)};
  }
  mx::array dense(given.shape(), given.dtype(), nullptr, {});
  cuda::copy(given, dense, s);
  launch.keep(dense);
  return {launch.read(dense), dense.strides(0), dense.strides(1), dense.strides(2)};
}

} // namespace

void stored_on_cuda(const Arrays& in, mx::array& y, const AttentionOptions& options, bool sinks, mx::Stream s) {
  constexpr int many_blocks = 264, most_parts = 1024;
  const auto &q = in[0], &k = in[1], &v = in[2];
  const auto& packing = options.packing;
  cuda::Launch launch(s);
  cuda::AttentionArgs args{};
  args.q = stored_heads(launch, q, s);
  args.k = stored_heads(launch, k, s);
  args.v = stored_heads(launch, v, s);
  args.rows = q.shape(0), args.heads = q.shape(1), args.tokens = q.shape(2);
  args.kv_heads = k.shape(1), args.slots = k.shape(2);
  args.scale = options.scale;
  args.cap = options.cap;
  args.mask = static_cast<int>(options.mask);
  args.layout = static_cast<int>(options.layout);
  args.window = options.window;
  if (options.mask == Mask::positions) {
    args.offsets = launch.read_resident<int32_t>(in[3]);
    args.offset_step = in[3].size() > 1 ? 1 : 0;
  }
  if (sinks) {
    args.sinks = launch.read_resident<float>(in.back());
  }
  args.y = launch.write(y);
  bool is_packed = packing.bits > 0;
  cuda::StoredHeads of{q.shape(3), y.shape(3), is_packed ? std::countr_zero(static_cast<unsigned>(packing.group)) : 0};
  int largest = std::max(of.dim, of.value_dim), padded = !is_packed ? 512 : largest <= 64 ? 64 : largest <= 128 ? 128 : 256;
  // Tiles of queries share the GPU, or, where they are few, parts of their keys.
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
