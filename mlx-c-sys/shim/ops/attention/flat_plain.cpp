// Attention of a flat step as a graph of MLX's operations, in f32. Queries and keys are [R, K, G, L, D] and [R, K, S, D]:
// R times, L queries are compared with S positions of one row, and the result of the time with the query's own row
// counts. Axes are named below: R, K, G (query heads of a KV head), L, S.
#include <limits>
#include <optional>

#include "flat.h"
#include "ops/gated/gated.h"
#include "ops/store/store.h"

namespace mlxrs::ops {
namespace {

mx::array number(int n) {
  return mx::array(n, mx::int32);
}

// What is compared: `own` [R, L] is true where a query belongs to the row, `at` [R or 1, L] is its position.
struct Compared {
  mx::array q;           // [R or 1, K, G, L, D]
  mx::array k, v;        // [R, K, S, D]
  mx::array own, at;
  mx::array position;    // [R, S]: the positions of keys
  mx::array is_reachable; // Bool [R, S], or [R, L, S] if R is 1 in a step without pages
  // The token of each query [R, L], if rows are padded to L.
  std::optional<mx::array> tokens = std::nullopt;
};

// The pages of `tables` [R, P] in order, [R, K, P PAGE, D], and F32.
mx::array gathered(
    const mx::array& pool, const mx::array& tables, const RowPacking& packing, mx::Dtype dtype, mx::Stream s) {
  int rows = tables.shape(0), pages = tables.shape(1);
  auto ids = mx::clip(tables, number(0), number(pool.shape(0) - 1), s);
  auto all = mx::swapaxes(mx::take(pool, ids, 0, s), 1, 2, s);
  all = mx::reshape(all, {rows, pool.shape(1), pages * pool.shape(2), pool.shape(3)}, s);
  return packing.bits > 0 ? unpack_plainly(all, packing, dtype, s) : mx::astype(all, mx::float32, s);
}

// With few tokens for each row (decode steps), each token has its row's pages of its own: R = T and L = 1. Otherwise all
// tokens are compared with all rows: R = B and L = T.
Compared paged(const FlatInputs& of, const mx::array& grouped, const FlatOptions& options, mx::Stream s) {
  int tokens = of.q.shape(2), rows = of.rows.count(), page = of.k.shape(2), slots = of.rows.tables->shape(1) * page;
  bool is_one_each = tokens <= 2 * rows;
  auto row = rows_of_tokens(of.rows, tokens, s), at = positions_of_tokens(of.rows, tokens, s);
  auto counts = mx::subtract(
      mx::slice(of.rows.starts, {1}, {rows + 1}, s), mx::slice(of.rows.starts, {0}, {rows}, s), s);
  auto tables = *of.rows.tables, lens = *of.rows.lens;
  auto own = mx::equal(mx::reshape(mx::arange(0, rows, 1, mx::int32, s), {rows, 1}, s), mx::reshape(row, {1, tokens}, s), s);
  auto q = grouped;
  if (is_one_each) {
    auto of_token = mx::minimum(row, number(rows - 1), s);
    tables = mx::take(tables, of_token, 0, s);
    lens = mx::take(lens, of_token, 0, s);
    counts = mx::take(counts, of_token, 0, s);
    own = mx::less(mx::reshape(row, {tokens, 1}, s), number(rows), s);
    q = mx::transpose(q, {3, 1, 2, 0, 4}, s);
  }
  at = mx::reshape(at, is_one_each ? mx::Shape{tokens, 1} : mx::Shape{1, tokens}, s);
  // Slot j of the table has the last position that is congruent to j modulo the number of slots.
  auto column = [&](const mx::array& a) { return mx::reshape(a, {-1, 1}, s); };
  auto last = column(mx::subtract(mx::add(lens, counts, s), number(1), s));
  auto slot = mx::reshape(mx::arange(0, slots, 1, mx::int32, s), {1, slots}, s);
  auto position = mx::subtract(last, mx::remainder(mx::subtract(last, slot, s), number(slots), s), s);
  auto is_reachable = mx::logical_and(
      mx::greater_equal(position, column(first_seen(lens, options, s)), s), mx::greater(column(counts), number(0), s), s);
  // Slots that no query reaches may hold NaN.
  auto read = [&](const mx::array& pool) {
    auto all = gathered(pool, tables, options.packing, of.q.dtype(), s);
    return mx::where(mx::expand_dims(is_reachable, std::vector<int>{1, 3}, s), all, mx::array(0.0f), s);
  };
  auto k = read(of.k);
  auto v = of.v ? read(*of.v) : mx::slice(k, {0, 0, 0, 0}, {k.shape(0), k.shape(1), slots, options.value_dim}, s);
  return {q, k, v, own, at, position, is_reachable};
}

// Whether rows without pages are padded to the most tokens of a row, because that compares fewer pairs of tokens.
bool is_padded(const FlatInputs& of, const FlatOptions& options) {
  int64_t tokens = of.q.shape(2), most = options.most, rows = of.rows.count();
  return most > 0 && most < tokens && rows * most * most < tokens * tokens;
}

// R = B, L = S = `most`.
Compared padded(const FlatInputs& of, const mx::array& grouped, const FlatOptions& options, mx::Stream s) {
  int tokens = of.q.shape(2), rows = of.rows.count(), most = options.most;
  auto begins = mx::reshape(mx::slice(of.rows.starts, {0}, {rows}, s), {rows, 1}, s);
  auto ends = mx::reshape(mx::slice(of.rows.starts, {1}, {rows + 1}, s), {rows, 1}, s);
  auto position = mx::reshape(mx::arange(0, most, 1, mx::int32, s), {1, most}, s);
  auto token = mx::add(begins, position, s);
  auto own = mx::less(token, ends, s);
  token = mx::clip(token, number(0), number(tokens - 1), s);
  // [1, .., T, D] as [R, .., L, D], with zeros in place of other rows' tokens, which may be NaN.
  auto by_row = [&](const mx::array& a) {
    int axis = static_cast<int>(a.ndim()) - 2;
    auto all = mx::moveaxis(mx::squeeze(mx::take(a, token, axis, s), 0, s), axis - 1, 0, s);
    auto shape = mx::Shape(all.ndim(), 1);
    shape[0] = rows, shape[axis] = most;
    return mx::where(mx::reshape(own, shape, s), mx::astype(all, mx::float32, s), mx::array(0.0f), s);
  };
  auto k = by_row(of.k);
  auto v = of.v ? by_row(*of.v) : mx::slice(k, {0, 0, 0, 0}, {rows, k.shape(1), most, options.value_dim}, s);
  return {by_row(grouped), k, v, own, position, position, own, token};
}

// R = 1, L = S = T.
Compared ragged(const FlatInputs& of, const mx::array& grouped, const FlatOptions& options, mx::Stream s) {
  int tokens = of.q.shape(2);
  auto row = rows_of_tokens(of.rows, tokens, s);
  auto at = mx::reshape(positions_of_tokens(of.rows, tokens, s), {1, tokens}, s);
  auto is_own = mx::reshape(mx::less(row, number(of.rows.count()), s), {1, tokens}, s);
  auto is_same = mx::equal(mx::reshape(row, {1, tokens, 1}, s), mx::reshape(row, {1, 1, tokens}, s), s);
  // Tokens of no row may be NaN.
  auto read = [&](const mx::array& a) {
    return mx::where(mx::reshape(is_own, {1, 1, tokens, 1}, s), mx::astype(a, mx::float32, s), mx::array(0.0f), s);
  };
  auto k = read(of.k);
  auto v = of.v ? read(*of.v) : mx::slice(k, {0, 0, 0, 0}, {1, k.shape(1), tokens, options.value_dim}, s);
  return {grouped, k, v, is_own, at, at, is_same};
}

// The mask [1 or H, 1 or T, S'] as [R or 1, K or 1, G or 1, L, S].
mx::array mask_of(const FlatInputs& of, const Compared& c, mx::Stream s) {
  auto mask = *of.mask;
  int kv_heads = of.k.shape(1), heads = mask.shape(0), tokens = of.q.shape(2), wide = mask.shape(2);
  if (of.rows.has_pages()) {
    // Slot j has position j.
    if (int more = c.position.shape(1) - wide; more > 0) {
      mask = mx::pad(mask, {2}, {0}, {more}, mx::astype(mx::array(0), mask.dtype(), s), "constant", s);
    }
  } else if (c.tokens) {
    int rows = c.own.shape(0), most = c.own.shape(1), seen = std::min(wide, most);
    mask = mx::slice(mask, {0, 0, 0}, {heads, mask.shape(1), seen}, s);
    mask = mx::pad(mask, {2}, {0}, {most - seen}, mx::astype(mx::array(0), mask.dtype(), s), "constant", s);
    // A token of each row or of none: [H', R, L, S].
    mask = mask.shape(1) == 1 ? mx::expand_dims(mask, 1, s) : mx::take(mask, *c.tokens, 1, s);
    mask = mx::moveaxis(mx::broadcast_to(mask, {heads, rows, most, most}, s), 0, 1, s);
    return mx::reshape(mask, {rows, heads == 1 ? 1 : kv_heads, heads == 1 ? 1 : heads / kv_heads, most, most}, s);
  } else {
    // Numbers in `starts` that are not those of a step give positions of any size.
    mask = mx::take(mask, mx::clip(mx::reshape(c.position, {tokens}, s), number(0), number(wide - 1), s), 2, s);
  }
  mask = mx::broadcast_to(mask, {heads, tokens, mask.shape(2)}, s);
  auto grouped = heads == 1 ? mx::Shape{1, 1, 1, tokens, mask.shape(2)} : mx::Shape{1, kv_heads, heads / kv_heads, tokens, mask.shape(2)};
  mask = mx::reshape(mask, grouped, s);
  return c.own.shape(1) == tokens ? mask : mx::transpose(mask, {3, 1, 2, 0, 4}, s);
}

// The results [R, K, G, L, Dv] of padded rows in the order of tokens, [1, K, G, T, Dv]. A token behind the most that a row
// may bring gets NaN.
mx::array unpadded(const FlatInputs& of, const mx::array& y, mx::Stream s) {
  int tokens = of.q.shape(2), rows = y.shape(0), most = y.shape(3);
  auto row = rows_of_tokens(of.rows, tokens, s), at = positions_of_tokens(of.rows, tokens, s);
  auto place = mx::add(
      mx::multiply(mx::minimum(row, number(rows - 1), s), number(most), s),
      mx::clip(at, number(0), number(most - 1), s), s);
  auto all = mx::reshape(mx::transpose(y, {1, 2, 0, 3, 4}, s), {1, y.shape(1), y.shape(2), rows * most, y.shape(4)}, s);
  all = mx::take(all, place, 3, s);
  auto of_token = [&](const mx::array& a) { return mx::reshape(a, {1, 1, 1, tokens, 1}, s); };
  auto nan = mx::array(std::numeric_limits<float>::quiet_NaN());
  all = mx::where(of_token(mx::less(at, number(most), s)), all, nan, s);
  return mx::where(of_token(mx::less(row, number(rows), s)), all, mx::array(0.0f), s);
}

} // namespace

mx::array is_before_end(const mx::array& position, const mx::array& at, const FlatOptions& options, mx::Stream s) {
  return mx::less_equal(mx::subtract(position, at, s), number(options.ahead), s);
}

mx::array first_seen(const mx::array& at, const FlatOptions& options, mx::Stream s) {
  auto first = mx::zeros_like(at, s);
  if (options.window > 0) {
    first = mx::maximum(first, mx::subtract(at, number(options.window - 1), s), s);
  }
  if (options.chunk > 0) {
    auto chunk = number(options.chunk);
    first = mx::maximum(first, mx::multiply(mx::floor_divide(at, chunk, s), chunk, s), s);
  }
  return first;
}

mx::array flat_attention_plainly(const FlatInputs& of, const FlatOptions& options, mx::Stream s) {
  int heads = of.q.shape(1), tokens = of.q.shape(2), kv_heads = of.k.shape(1), group = heads / kv_heads;
  if (of.q.size() == 0) {
    return mx::zeros({1, heads, tokens, value_size(of, options)}, of.q.dtype(), s);
  }
  // Tokens of no row may be NaN, which would show in gradients.
  auto is_own = mx::less(rows_of_tokens(of.rows, tokens, s), number(of.rows.count()), s);
  auto q = mx::where(
      mx::reshape(is_own, {1, 1, tokens, 1}, s), mx::astype(of.q, mx::float32, s), mx::array(0.0f), s);
  auto scaled = mx::multiply(q, mx::array(options.scale), s);
  auto grouped = mx::reshape(scaled, {1, kv_heads, group, tokens, of.q.shape(3)}, s);
  auto c = of.rows.has_pages() ? paged(of, grouped, options, s)
      : is_padded(of, options) ? padded(of, grouped, options, s)
                               : ragged(of, grouped, options, s);
  auto scores = mx::matmul(c.q, mx::swapaxes(mx::expand_dims(c.k, 2, s), -1, -2, s), s);
  if (options.cap != 0) {
    scores = soft_cap_plainly(scores, options.cap, s);
  }
  auto at = mx::expand_dims(c.at, 2, s), position = mx::expand_dims(c.position, 1, s);
  auto by_head = [&](const mx::array& a) { return mx::reshape(mx::astype(a, mx::float32, s), {1, kv_heads, group, 1, 1}, s); };
  auto for_heads = [&](const mx::array& a) { return mx::expand_dims(a, std::vector<int>{1, 2}, s); };
  if (of.slopes) {
    auto distance = mx::astype(mx::subtract(position, at, s), mx::float32, s);
    scores = mx::add(scores, mx::multiply(by_head(*of.slopes), for_heads(distance), s), s);
  }
  if (of.mask) {
    // A query from which booleans hide all keys gets the mean of the values from the first position to its own.
    auto mask = mask_of(of, c, s);
    scores = mask.dtype() == mx::bool_ ? mx::where(mask, scores, mx::array(std::numeric_limits<float>::lowest()), s)
                                       : mx::add(scores, mask, s);
  }
  auto reachable = c.is_reachable.ndim() == 2 ? mx::expand_dims(c.is_reachable, 1, s) : c.is_reachable;
  auto seen = mx::logical_and(is_before_end(position, at, options, s), mx::greater_equal(position, first_seen(at, options, s), s), s);
  seen = mx::logical_and(seen, reachable, s);
  // Tokens of other rows see everything, because a sum of no weights would be NaN. Their results are cut off below.
  auto own = mx::expand_dims(c.own, 2, s);
  seen = for_heads(mx::logical_or(seen, mx::logical_not(own, s), s));
  scores = mx::where(seen, scores, mx::array(-std::numeric_limits<float>::infinity()), s);
  auto shape = scores.shape();
  if (of.sinks) {
    auto column = shape;
    column[4] = 1;
    scores = mx::concatenate({scores, mx::broadcast_to(by_head(*of.sinks), column, s)}, -1, s);
  }
  auto weights = mx::softmax(scores, std::vector<int>{-1}, true, s);
  if (of.sinks) {
    weights = mx::slice(weights, {0, 0, 0, 0, 0}, shape, s);
  }
  auto y = mx::matmul(weights, mx::expand_dims(c.v, 2, s), s);
  y = mx::where(mx::expand_dims(own, std::vector<int>{1, 2}, s), y, mx::array(0.0f), s);
  // A token's result is not zero in its own row only.
  y = c.tokens ? unpadded(of, y, s)
      : c.own.shape(1) == tokens ? mx::sum(y, 0, true, s) : mx::transpose(y, {3, 1, 2, 0, 4}, s);
  return mx::astype(mx::reshape(y, {1, heads, tokens, y.shape(4)}, s), of.q.dtype(), s);
}

} // namespace mlxrs::ops
