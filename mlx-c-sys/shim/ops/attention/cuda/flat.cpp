// Launches the attention kernels for a flat step.
#include "flat.h"

#include "attention.h"
#include "ops/store/cuda/store.h"

namespace mlxrs::ops {

bool flat_fits_cuda(const FlatInputs& of, const FlatOptions& options) {
  if (of.rows.has_pages() && of.k.shape(2) != cuda::page_slots) {
    return false;
  }
  AttentionOptions same{options.scale, options.cap, Mask::positions, Layout::straight, options.window, options.packing};
  return fits_cuda(of.q, of.k, value_size(of, options), same);
}

void flat_attention_on_cuda(const FlatInputs& of, mx::array& y, const FlatOptions& options, mx::Stream s) {
  cuda::Launch launch(s);
  const auto &q = of.q, &k = of.k, &v = of.v ? *of.v : of.k;
  auto heads = [&](const mx::array& a) { return cuda::heads_of(launch, a, s, a.itemsize() == 2 ? 8 : 1); };
  cuda::AttentionArgs args{};
  args.q = heads(q);
  args.k = heads(k);
  args.v = of.v ? heads(v) : args.k;
  int tokens = q.shape(2), rows = of.rows.count(), most = options.most > 0 ? std::min(options.most, tokens) : tokens;
  bool has_pages = of.rows.has_pages();
  if (has_pages) {
    // The first axis of a pool counts pages.
    args.k_page = args.k.row, args.v_page = args.v.row;
    take_rows(launch, args.flat, {of.rows.starts, *of.rows.lens, *of.rows.tables}, most);
    args.offsets = launch.read_resident<int32_t>(*of.rows.lens);
    args.offset_step = 1;
  } else {
    args.flat = {launch.read_resident<int32_t>(of.rows.starts), nullptr, 0, rows, most};
  }
  args.rows = rows, args.heads = q.shape(1), args.tokens = most, args.tokens_of_all = tokens;
  args.kv_heads = k.shape(1), args.slots = has_pages ? args.flat.columns * cuda::page_slots : most;
  args.by_kv_heads = cuda::Divisor(args.kv_heads), args.by_group = cuda::Divisor(args.heads / args.kv_heads);
  args.scale = options.scale;
  args.cap = options.cap;
  args.mask = static_cast<int>(Mask::positions);
  args.layout = static_cast<int>(Layout::straight);
  args.window = options.window;
  args.chunk = options.chunk;
  // No row has more tokens than `most`.
  args.ahead = std::min(options.ahead, most);
  if (args.ahead > 0 && args.window > 0) {
    args.window = std::min(args.window, most) + args.ahead;
  }
  args.early = has_pages && launch.is_old(args.offsets) && launch.is_old(args.flat.starts) && launch.is_old(args.flat.tables) &&
      launch.follows_append(args.offsets, tokens);
  if (of.sinks) {
    args.sinks = launch.read_resident<float>(*of.sinks);
  }
  args.adds = of.slopes || of.mask;
  if (of.slopes) {
    args.slopes = launch.read_resident<float>(*of.slopes);
  }
  if (of.mask) {
    const auto& mask = *of.mask;
    auto step = [&](int axis) { return mask.shape(axis) > 1 ? mask.strides(axis) : 0; };
    args.added = launch.read(mask);
    args.added_is_bool = mask.dtype() == mx::bool_;
    args.added_columns = mask.shape(2);
    args.added_head = step(0), args.added_token = step(1), args.added_column = mask.strides(2);
  }
  args.y = launch.write(y);
  AttentionOptions same{options.scale, options.cap, Mask::positions, Layout::straight, options.window, options.packing};
  if (is_stored(q.shape(3), y.shape(3), same)) {
    launch_stored(launch, args, q, y, options.packing, s);
  } else {
    launch_attention(launch, args, q, y.shape(3), s);
  }
}

} // namespace mlxrs::ops
