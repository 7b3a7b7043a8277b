// Launches the attention kernel for keys and values that are not packed.
#include "attention.h"

#include "cuda/launch.h"

namespace mlxrs::ops {

cuda::AttentionArgs attention_args(
    cuda::Launch& launch, const Arrays& in, mx::array& y, const AttentionOptions& options, bool sinks, mx::Stream s) {
  auto heads = [&](const mx::array& a) { return cuda::heads_of(launch, a, s, a.itemsize() == 2 ? 8 : 1); };
  const auto &q = in[0], &k = in[1];
  cuda::AttentionArgs args{};
  args.q = heads(q);
  args.k = heads(k);
  args.v = heads(in[2]);
  args.rows = q.shape(0), args.heads = q.shape(1), args.tokens = q.shape(2);
  args.kv_heads = k.shape(1), args.slots = k.shape(2);
  args.by_kv_heads = cuda::Divisor(args.kv_heads), args.by_group = cuda::Divisor(args.heads / args.kv_heads);
  args.scale = options.scale;
  args.cap = options.cap;
  args.mask = static_cast<int>(options.mask);
  args.layout = static_cast<int>(options.layout);
  args.window = options.window;
  if (options.mask == Mask::positions) {
    args.offsets = launch.read_resident<int32_t>(in[3]);
    args.offset_step = in[3].size() > 1 ? 1 : 0;
    args.early = launch.is_old(args.offsets) && launch.follows_append(args.offsets, args.tokens);
  }
  if (sinks) {
    args.sinks = launch.read_resident<float>(in.back());
  }
  args.y = launch.write(y);
  return args;
}

namespace {

constexpr int tile_queries = 16, part_slots = 64;

// Prompts have a kernel whose warps share keys and values. Returns the number of warps of its blocks, or 0 if it would have
// too few blocks. `groups` is the number of KV heads of all rows.
int warps_of_prompt(int queries, int64_t groups) {
  auto blocks = [&](int warps) { return cuda::blocks_of(queries, tile_queries * warps) * groups; };
  if (queries > 4 * tile_queries && blocks(8) >= cuda::processors) {
    return 8;
  }
  return queries > tile_queries && blocks(4) >= 3 * cuda::processors / 2 ? 4 : 0;
}

} // namespace

void attention_on_cuda(const Arrays& in, mx::array& y, const AttentionOptions& options, bool sinks, mx::Stream s) {
  cuda::Launch launch(s);
  auto args = attention_args(launch, in, y, options, sinks, s);
  launch_attention(launch, args, in[0], y.shape(3), s);
}

void launch_attention(cuda::Launch& launch, cuda::AttentionArgs& args, const mx::array& q, int value_dim, mx::Stream s) {
  constexpr int many_blocks = 2 * cuda::processors;
  constexpr int64_t most_scratch = 512 << 20;
  int dim = q.shape(3), largest = std::max(dim, value_dim);
  int padded = largest <= 64 ? 64 : largest <= 128 ? 128 : 256;
  auto type = std::string(cuda::name_of(q.dtype()));
  // All choices here give the same bits.
  int queries = args.tokens * args.by_group.by;
  if (int warps = warps_of_prompt(queries, static_cast<int64_t>(args.kv_heads) * args.rows)) {
    // Keys, values, and queries of large heads (prompt.cu).
    int shared_queries = padded == 256 && cuda::is_roomy(launch.generation()) ? tile_queries * warps : 0;
    unsigned shared = static_cast<unsigned>((part_slots + shared_queries) * (padded + 32) + part_slots * (padded + 8)) * 2;
    unsigned tiles = cuda::blocks_of(queries, tile_queries * warps) * static_cast<unsigned>(args.kv_heads);
    launch.run_with(
        shared, "attention/prompt", "prompt_" + type + "_" + std::to_string(padded) + "_" + std::to_string(warps),
        dim3(tiles, static_cast<unsigned>(args.rows), 1), warps * 32, args, dim, value_dim);
    return;
  }
  // With enough tiles of queries, each block goes through all keys. With few tiles, the keys are divided among as many
  // blocks as run at once: a block takes some time to start and to end, and loads keys ahead.
  int tiles = static_cast<int>(cuda::blocks_of(queries, tile_queries));
  int64_t blocks = static_cast<int64_t>(tiles) * args.kv_heads * args.rows;
  int parts = static_cast<int>(cuda::blocks_of(args.slots, part_slots));
  args.kept = std::min(tile_queries, (queries + 3) / 4 * 4);
  int64_t of_part = sizeof(float) * args.kept * (padded + 2);
  bool is_split = blocks * parts * of_part <= most_scratch;
  args.parts = is_split ? static_cast<int>(std::clamp<int64_t>(many_blocks / blocks, 1, parts)) : 1;
  // The blocks of a cluster wait for each other, so they must all run at once.
  args.is_cluster = parts > 1 && parts <= cuda::cluster_blocks && blocks * parts <= cuda::processors && launch.generation() >= 9;
  if (args.is_cluster) {
    launch.use_clusters(static_cast<unsigned>(parts));
  } else if (args.parts > 1) {
    auto partial = cuda::scratch(blocks * parts * of_part, s);
    launch.keep(partial);
    args.partial = launch.write<float>(partial);
    auto tickets = cuda::counters(blocks, s);
    args.tickets = launch.write<uint32_t>(tickets);
  }
  // Early loads save latency, which many blocks hide anyway.
  args.early = args.early && blocks * args.parts <= many_blocks;
  // decode.cu was measured on Hopper only, and needs room for two blocks on a multiprocessor.
  bool is_usual = args.flat.tables != nullptr && !args.adds && args.chunk == 0 && tiles == 1 && dim == value_dim && dim == padded &&
      padded <= 128 && args.k.token == dim && args.v.token == dim && cuda::is_roomy(launch.generation());
  if (is_usual && !args.is_cluster && blocks * args.parts > cuda::processors) {
    constexpr int many_slots = 8 * part_slots, most_rows = 256;
    args.sorts = args.parts == 1 && blocks > many_blocks && args.slots >= many_slots && args.rows <= most_rows;
    unsigned shared = static_cast<unsigned>(2 * 2 * part_slots * (padded + 8)) * 2;
    launch.run_with(
        shared, "attention/decode", "decode_" + type + "_" + std::to_string(padded),
        dim3(static_cast<unsigned>(args.kv_heads), static_cast<unsigned>(args.parts), static_cast<unsigned>(args.rows)), 256, args);
    return;
  }
  auto kernel = "attention_" + type + "_" + std::to_string(padded);
  if (padded == 256 && blocks * args.parts <= cuda::processors) {
    kernel += "_few";
  }
  launch.run(
      "attention/attention", kernel,
      dim3(static_cast<unsigned>(tiles * args.kv_heads), static_cast<unsigned>(args.parts), static_cast<unsigned>(args.rows)), 256, args, dim,
      value_dim);
}

} // namespace mlxrs::ops
