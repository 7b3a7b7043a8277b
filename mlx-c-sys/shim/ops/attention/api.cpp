// The C functions of attention.
#include "flat.h"
#include "ops/border.h"
#include "ops/store/store.h"

using namespace mlxrs;

namespace {

ops::Layout layout_of(mlxrs_slots slots) {
  if (slots < MLXRS_SLOTS_STRAIGHT || slots > MLXRS_SLOTS_BEHIND) {
    throw std::invalid_argument("attention: unknown place of keys " + std::to_string(static_cast<int>(slots)));
  }
  return static_cast<ops::Layout>(slots);
}

mx::array flat_attention(
    ops::FlatInputs of, const mlxrs_seen& seen, mlx_array sinks, const mlxrs_flat_options& options, mlx_stream s, int most) {
  auto stream = mlx_stream_get_(s);
  ops::FlatOptions how{options.scale, options.soft_cap, seen.window, seen.chunk,
                       ops::row_packing(options.bits, options.group_size), options.value_dim, seen.ahead, most};
  auto wide = [&](const mx::array& a) { return a.dtype() == mx::bool_ ? a : mx::astype(a, mx::float32, stream); };
  if (auto mask = ops::optional(seen.mask)) {
    of.mask = wide(*mask);
  }
  of.slopes = ops::optional(seen.slopes);
  if (auto scores = ops::optional(sinks)) {
    of.sinks = wide(*scores);
  }
  ops::check_flat(of, how);
  return ops::run(
      MLXRS_OP_ATTENTION, stream, [&] { return ops::flat_attention(of, how, stream); },
      [&] { return ops::flat_attention_plainly(of, how, stream); });
}

} // namespace

extern "C" int mlxrs_fast_attention(
    mlx_array* res,
    mlx_array queries,
    mlx_array keys,
    mlx_array values,
    mlx_array mask_or_offsets,
    mlx_array sinks,
    mlxrs_attention_options options,
    mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    auto mask = options.mask;
    bool needs_array = mask == MLXRS_MASK_ARRAY || mask == MLXRS_MASK_POSITIONS;
    if (mask < MLXRS_MASK_NONE || mask > MLXRS_MASK_POSITIONS || needs_array != (mask_or_offsets.ctx != nullptr)) {
      throw std::invalid_argument("attention: this kind of mask needs another argument");
    }
    ops::AttentionOptions how{
        options.scale, options.soft_cap, static_cast<ops::Mask>(mask), layout_of(options.slots), options.window,
        ops::row_packing(options.bits, options.group_size)};
    ops::AttentionInputs of{
        mlx_array_get_(queries), mlx_array_get_(keys), mlx_array_get_(values), ops::optional(mask_or_offsets), ops::optional(sinks)};
    auto y = ops::run(
        MLXRS_OP_ATTENTION, stream, [&] { return ops::attention(of, how, stream); },
        [&] { return ops::attention_plainly(of, how, stream); });
    mlx_array_set_(*res, y);
  });
}

extern "C" int mlxrs_fast_dense_mask(
    mlx_array* res, mlx_array offsets, int queries, int keys, mlxrs_slots slots, int window, mlx_stream s) {
  return guarded([&] {
    auto y = ops::dense_mask(queries, keys, layout_of(slots), window, mlx_array_get_(offsets), mlx_stream_get_(s));
    mlx_array_set_(*res, y);
  });
}

extern "C" int mlxrs_fast_paged_attention(
    mlx_array* res,
    mlx_array queries,
    mlx_array keys,
    mlx_array values,
    mlxrs_pages pages,
    mlxrs_seen seen,
    mlx_array sinks,
    mlxrs_flat_options options,
    mlx_stream s) {
  return guarded([&] {
    ops::FlatInputs of{
        mlx_array_get_(queries), mlx_array_get_(keys), ops::optional(values), ops::rows_of(pages), std::nullopt, std::nullopt,
        std::nullopt};
    mlx_array_set_(*res, flat_attention(std::move(of), seen, sinks, options, s, pages.most));
  });
}

extern "C" int mlxrs_fast_ragged_attention(
    mlx_array* res,
    mlx_array queries,
    mlx_array keys,
    mlx_array values,
    mlx_array starts,
    mlxrs_seen seen,
    mlx_array sinks,
    mlxrs_flat_options options,
    mlx_stream s) {
  return guarded([&] {
    ops::FlatRows rows{mlx_array_get_(starts), std::nullopt, std::nullopt};
    ops::FlatInputs of{
        mlx_array_get_(queries), mlx_array_get_(keys), ops::optional(values), rows, std::nullopt, std::nullopt, std::nullopt};
    mlx_array_set_(*res, flat_attention(std::move(of), seen, sinks, options, s, options.most));
  });
}
