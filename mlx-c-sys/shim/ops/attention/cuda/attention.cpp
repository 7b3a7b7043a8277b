#include "attention.h"

#include "cuda/launch.h"

namespace mlxrs::ops {

void attention_on_cuda(const Arrays& in, mx::array& y, const AttentionOptions& options, bool sinks, mx::Stream s) {
  constexpr int tile_queries = 16, part_slots = 64, processors = 132, many_blocks = 2 * processors, most_parts = 512;
  const auto &q = in[0], &k = in[1], &v = in[2];
  cuda::Launch launch(s);
  auto heads_of = [&](const mx::array& given) -> cuda::Heads {
    // Vectors of 16 bytes are read at once.
    bool is_dense = given.strides(3) == 1 && given.strides(2) % 8 == 0 && given.strides(1) % 8 == 0 &&
        given.strides(0) % 8 == 0 && given.offset() % 16 == 0;
    auto a = is_dense ? given : cuda::dense(given, s);
    launch.keep(a);
    return {launch.read(a), a.strides(0), a.strides(1), a.strides(2)};
  };
  cuda::AttentionArgs args{};
  args.q = heads_of(q);
  args.k = heads_of(k);
  args.v = heads_of(v);
  int rows = q.shape(0), kv_heads = k.shape(1), group = q.shape(1) / kv_heads;
  args.tokens = q.shape(2), args.slots = k.shape(2);
  args.rows = rows, args.heads = q.shape(1), args.kv_heads = kv_heads;
  args.by_kv_heads = cuda::Divisor(kv_heads), args.by_group = cuda::Divisor(group);
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
  // Tiles of queries share the GPU, or, where they are few, parts of their keys.
  int tiles = static_cast<int>(cuda::blocks_of(static_cast<int64_t>(args.tokens) * group, tile_queries));
  int64_t blocks = static_cast<int64_t>(tiles) * kv_heads * rows;
  int parts = static_cast<int>(cuda::blocks_of(args.slots, part_slots));
  args.parts = blocks >= many_blocks || parts > most_parts ? 1 : parts;
  int dim = q.shape(3), value_dim = y.shape(3), largest = std::max(dim, value_dim);
  int padded = largest <= 64 ? 64 : largest <= 128 ? 128 : 256;
  if (args.parts > 1) {
    auto partial = cuda::scratch(sizeof(float) * blocks * parts * tile_queries * (padded + 2), s);
    launch.keep(partial);
    args.partial = launch.write<float>(partial);
    auto tickets = cuda::counters(blocks, s);
    args.tickets = launch.write<uint32_t>(tickets);
  }
  auto kernel = std::string("attention_") + cuda::name_of(q.dtype()) + "_" + std::to_string(padded);
  if (padded == 256 && blocks * args.parts <= processors) {
    kernel += "_few";
  }
  launch.run(
      "attention/attention", kernel,
      dim3(static_cast<unsigned>(tiles * kv_heads), static_cast<unsigned>(args.parts), static_cast<unsigned>(rows)), 256, args, dim,
      value_dim);
}

} // namespace mlxrs::ops
