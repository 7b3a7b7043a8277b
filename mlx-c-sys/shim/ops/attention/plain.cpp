// Attention as a graph of MLX's operations, for other GPUs and for transformations.
#include <limits>

#include "mlx/fast.h"

#include "attention.h"
#include "ops/gated/gated.h"
#include "ops/store/store.h"

namespace mlxrs::ops {

mx::array dense_mask(
    int queries, int slots, Layout layout, int window, const mx::array& offsets, mx::Stream s) {
  auto number = [](int n) { return mx::array(n, mx::int32); };
  auto first = mx::reshape(mx::astype(offsets, mx::int32, s), {-1, 1, 1, 1}, s);
  auto query = mx::add(first, mx::reshape(mx::arange(0, queries, 1, mx::int32, s), {1, 1, queries, 1}, s), s);
  auto key = mx::reshape(mx::arange(0, slots, 1, mx::int32, s), {1, 1, 1, slots}, s);
  if (layout == Layout::behind) {
    key = mx::add(key, mx::subtract(first, number(slots - queries), s), s);
  } else if (layout == Layout::ring) {
    auto last = mx::add(first, number(queries - 1), s);
    key = mx::subtract(last, mx::remainder(mx::subtract(last, key, s), number(slots), s), s);
  }
  auto seen = mx::logical_and(mx::less_equal(key, query, s), mx::greater_equal(key, number(0), s), s);
  if (window > 0) {
    seen = mx::logical_and(seen, mx::less(mx::subtract(query, key, s), number(window), s), s);
  }
  return seen;
}

namespace {

// Attention with a soft cap, which MLX's fused attention does not support. The softmax is in f32.
mx::array capped(
    const AttentionInputs& of, const AttentionOptions& options, const std::optional<mx::array>& mask, mx::Stream s) {
  const mx::array &q = of.q, &k = of.k, &v = of.v;
  const auto& sinks = of.sinks;
  int rows = q.shape(0), heads = q.shape(1), queries = q.shape(2), kv_heads = k.shape(1), slots = k.shape(2);
  int group = heads / kv_heads;
  auto grouped = mx::reshape(
      mx::multiply(q, mx::array(options.scale, q.dtype()), s), {rows, kv_heads, group, queries, q.shape(3)}, s);
  auto scores = mx::matmul(grouped, mx::swapaxes(mx::expand_dims(k, 2, s), -1, -2, s), s);
  scores = mx::astype(soft_cap_plainly(scores, options.cap, s), mx::float32, s);
  if (mask) {
    auto all = mx::broadcast_to(*mask, {rows, heads, queries, slots}, s);
    all = mx::reshape(all, {rows, kv_heads, group, queries, slots}, s);
    // As in MLX's own attention, a query whose keys are all hidden gets the mean of the values.
    scores = mask->dtype() == mx::bool_
        ? mx::where(all, scores, mx::array(std::numeric_limits<float>::lowest()), s)
        : mx::add(scores, mx::astype(all, mx::float32, s), s);
  }
  if (sinks) {
    auto column = mx::reshape(mx::astype(*sinks, mx::float32, s), {1, kv_heads, group, 1, 1}, s);
    column = mx::broadcast_to(column, {rows, kv_heads, group, queries, 1}, s);
    scores = mx::concatenate({scores, column}, -1, s);
  }
  auto weights = mx::softmax(scores, std::vector<int>{-1}, true, s);
  if (sinks) {
    weights = mx::slice(weights, {0, 0, 0, 0, 0}, {rows, kv_heads, group, queries, slots}, s);
  }
  auto y = mx::matmul(mx::astype(weights, v.dtype(), s), mx::expand_dims(v, 2, s), s);
  return mx::reshape(y, {rows, heads, queries, v.shape(3)}, s);
}

} // namespace

mx::array attention_plainly(const AttentionInputs& of, const AttentionOptions& options, mx::Stream s) {
  const mx::array &q = of.q, &k = of.k, &v = of.v;
  const auto& sinks = of.sinks;
  if (options.packing.bits > 0) {
    auto read = options;
    read.packing = {};
    auto unpack = [&](const mx::array& a) { return mx::astype(unpack_plainly(a, options.packing, q.dtype(), s), q.dtype(), s); };
    auto keys = unpack(k), values = unpack(v);
    return attention_plainly({q, keys, values, of.mask_or_offsets, sinks}, read, s);
  }
  auto mask = of.mask_or_offsets;
  if (options.mask == Mask::positions) {
    mask = dense_mask(q.shape(2), k.shape(2), options.layout, options.window, *of.mask_or_offsets, s);
  }
  if (options.cap == 0) {
    // A node holds masks that are added in f32, and MLX takes none that is wider than the result.
    if (mask && mask->dtype() != mx::bool_) {
      mask = mx::astype(*mask, mx::result_type(q, k, v), s);
    }
    auto mode = mask ? "array" : options.mask == Mask::causal ? "causal" : "";
    auto narrow = sinks ? std::make_optional(mx::astype(*sinks, q.dtype(), s)) : std::nullopt;
    return mx::fast::scaled_dot_product_attention(q, k, v, options.scale, mode, mask, narrow, false, s);
  }
  if (options.mask == Mask::causal) {
    auto first = mx::array(k.shape(2) - q.shape(2), mx::int32);
    mask = dense_mask(q.shape(2), k.shape(2), Layout::straight, 0, first, s);
  }
  return capped(of, options, mask, s);
}

} // namespace mlxrs::ops
