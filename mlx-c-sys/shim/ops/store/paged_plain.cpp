// Storing in pages as a graph of MLX's operations.
#include "paged.h"

namespace mlxrs::ops {

void check_paged_store(const PagedStoreInputs& of, const RowPacking& packing) {
  check_rows(of.rows, "store");
  const auto fresh_keys = of.keys_shape();
  auto type = of.keys ? of.keys->dtype() : of.projection->x.dtype();
  if (of.pools.size() != (of.values ? 2u : 1u)) {
    throw std::invalid_argument("store: keys and values have a pool each, and latents have one");
  }
  for (size_t i = 0; i < of.pools.size(); i++) {
    const auto& pool = of.pools[i];
    check_pool(pool, "store");
    auto fresh = i == 0 ? fresh_keys : of.values->shape();
    // Rows that are packed already are kept as they are.
    bool is_kept = is_float(type) || (type == mx::uint32 && packing.bits == 0);
    bool fits = fresh.size() == 4 && fresh[0] == 1 && fresh[2] == fresh_keys[2] && is_kept &&
        (i == 0 || of.values->dtype() == type) && pool.dtype() == (packing.bits > 0 ? mx::uint32 : type) &&
        pool.shape(1) == fresh[1] && unpacked_size(pool, packing, type) == fresh[3] && pool.shape(0) == of.pools[0].shape(0) &&
        pool.shape(2) == of.pools[0].shape(2);
    if (!fits) {
      throw std::invalid_argument("store: pools of pages and new keys or values do not fit each other");
    }
  }
}

Arrays paged_store_plainly(const PagedStoreInputs& of, const PagedStoreOptions& options, mx::Stream s) {
  auto keys = of.keys ? *of.keys : heads_plainly(*of.projection, s);
  check_paged_store(of, options.packing);
  auto number = [](int n) { return mx::array(n, mx::int32); };
  const auto& [starts, lens, tables] = of.rows;
  int tokens = keys.shape(2), rows = of.rows.count(), page = of.pools[0].shape(2), pages = of.pools[0].shape(0);
  Arrays out = of.pools;
  if (tokens > 0) {
    // Tokens of no row are written as the last token of the step is. If there is none, what is stored is written again.
    auto last = mx::subtract(mx::slice(starts, {rows}, {rows + 1}, s), number(1), s);
    auto source = mx::minimum(mx::arange(0, tokens, 1, mx::int32, s), mx::maximum(last, number(0), s), s);
    auto row = mx::take(mx::minimum(rows_of_tokens(of.rows, tokens, s), number(rows - 1), s), source, 0, s);
    auto at = mx::take(positions_of_tokens(of.rows, tokens, s), source, 0, s);
    auto entry = mx::remainder(mx::floor_divide(at, number(page), s), number(tables->shape(1)), s);
    entry = mx::add(mx::multiply(row, number(tables->shape(1)), s), entry, s);
    auto ids = mx::take(mx::reshape(*tables, {-1}, s), entry, 0, s);
    ids = mx::clip(ids, number(0), number(pages - 1), s);
    auto slot = mx::remainder(at, number(page), s);
    auto is_any = mx::reshape(mx::greater_equal(last, number(0), s), {1, 1, 1}, s);
    for (size_t i = 0; i < out.size(); i++) {
      auto fresh = i == 0 ? keys : *of.values;
      fresh = options.packing.bits > 0 ? pack_plainly(fresh, options.packing, s) : fresh;
      int heads = fresh.shape(1), size = fresh.shape(3);
      // [T, K, D]
      fresh = mx::take(mx::swapaxes(mx::reshape(fresh, {heads, tokens, size}, s), 0, 1, s), source, 0, s);
      auto stored = mx::gather(out[i], {ids, slot}, {0, 2}, {1, heads, 1, size}, s);
      stored = mx::reshape(stored, {tokens, heads, size}, s);
      auto update = mx::reshape(mx::where(is_any, fresh, stored, s), {tokens, 1, heads, 1, size}, s);
      out[i] = mx::scatter(out[i], {ids, slot}, update, {0, 2}, s);
    }
  }
  if (of.queries) {
    out.push_back(heads_plainly(*of.queries, s));
  }
  return out;
}

} // namespace mlxrs::ops
