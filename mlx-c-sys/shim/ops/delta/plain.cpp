// Linear attention as a graph of MLX's operations: tokens are processed in chunks by matrix products, and the state is
// carried from chunk to chunk.
#include <cmath>
#include <functional>
#include <limits>

#include "delta.h"

namespace mlxrs::ops {
namespace {

// A constant [n, n] matrix: `on` where is(i, j), else `off`.
template <typename Is>
mx::array square(int n, float on, float off, const Is& is) {
  std::vector<float> values(static_cast<size_t>(n) * n);
  for (int i = 0; i < n; i++) {
    for (int j = 0; j < n; j++) {
      values[static_cast<size_t>(i) * n + j] = is(i, j) ? on : off;
    }
  }
  return mx::array(values.begin(), {n, n}, mx::float32);
}

mx::array transposed(const mx::array& x, mx::Stream s) {
  return mx::swapaxes(x, -1, -2, s);
}

// (I + a)^-1 for a strictly lower triangular `a` [.., n, n], where n is a power of two. The inverses of blocks of size
// 2m follow from those of size m: for [[p, 0], [a, q]] the inverse is [[p^-1, 0], [-q^-1 a p^-1, q^-1]].
mx::array unit_inverse(const mx::array& a, int n, mx::Stream s) {
  auto inverse = mx::broadcast_to(square(n, 1, 0, [](int i, int j) { return i == j; }), a.shape(), s);
  for (int m = 1; m < n; m *= 2) {
    auto below = square(n, 1, 0, [m](int i, int j) { return i / (2 * m) == j / (2 * m) && i / m > j / m; });
    auto blocks = mx::multiply(a, below, s);
    inverse = mx::subtract(inverse, mx::matmul(inverse, mx::matmul(blocks, inverse, s), s), s);
  }
  return inverse;
}

// Splits queries or keys [B, L, K D] into heads and repeats them for the value heads: [B, H, L, D].
mx::array split(const mx::array& x, int key_heads, int heads, int dim, mx::Stream s) {
  auto split = mx::reshape(x, {x.shape(0), x.shape(1), key_heads, dim}, s);
  return mx::swapaxes(mx::repeat(split, heads / key_heads, 2, s), 1, 2, s);
}

// Scales each vector to length 1.
mx::array unit(const mx::array& x, mx::Stream s) {
  auto squares = mx::sum(mx::square(x, s), -1, true, s);
  return mx::multiply(x, mx::rsqrt(mx::add(squares, mx::array(1e-6f), s), s), s);
}

// A chunk of tokens: q and k [B, H, n, D], v [B, H, n, V], the logarithms of the decays [B, H, n, 1 or D], and beta [B,
// H, n, 1].
struct Tokens {
  mx::array q, k, v, decay, beta;
};

// Processes a chunk of n tokens: updates the state and returns the tokens' outputs.
mx::array advance(Rule rule, const Tokens& t, mx::array& state, mx::Stream s) {
  int n = t.q.shape(2);
  // The decay from the start of the chunk to each token.
  auto so_far = mx::cumsum(t.decay, 2, false, true, s);
  auto past = square(n, 0, -std::numeric_limits<float>::infinity(), [](int i, int j) { return i >= j; });
  auto from = [&](const mx::array& between, const mx::array& past) {
    return mx::exp(mx::where(mx::equal(past, mx::array(0.0f), s), between, past, s), s);
  };
  auto k_t = transposed(t.k, s);
  // The products of x with the keys at or before x's position, each decayed from the key's token to x's token: [.., n,
  // n].
  std::function<mx::array(const mx::array&)> with_keys;
  if (rule == Rule::channels) {
    auto between = mx::subtract(mx::expand_dims(so_far, 3, s), mx::expand_dims(so_far, 2, s), s);
    auto keys = mx::multiply(mx::expand_dims(t.k, 2, s), from(between, mx::expand_dims(past, -1, s)), s);
    with_keys = [=](const mx::array& x) { return mx::sum(mx::multiply(mx::expand_dims(x, 3, s), keys, s), -1, false, s); };
  } else {
    auto gamma = from(mx::subtract(so_far, transposed(so_far, s), s), past);
    with_keys = [=](const mx::array& x) { return mx::multiply(mx::matmul(x, k_t, s), gamma, s); };
  }
  auto grown = mx::exp(so_far, s), state_t = transposed(state, s);
  auto change = mx::multiply(t.v, t.beta, s);
  if (rule != Rule::scan) {
    auto strict = square(n, 1, 0, [](int i, int j) { return i > j; });
    auto a = mx::multiply(mx::multiply(with_keys(t.k), t.beta, s), strict, s);
    auto known = mx::matmul(mx::multiply(mx::multiply(t.k, grown, s), t.beta, s), state_t, s);
    change = mx::matmul(unit_inverse(a, n, s), mx::subtract(change, known, s), s);
  }
  auto read = mx::matmul(with_keys(t.q), change, s);
  auto y = mx::add(mx::matmul(mx::multiply(t.q, grown, s), state_t, s), read, s);
  auto last = mx::slice(so_far, {0, 0, n - 1, 0}, so_far.shape(), s);
  auto kept = mx::multiply(t.k, mx::exp(mx::subtract(last, so_far, s), s), s);
  state = mx::add(mx::multiply(state, mx::exp(last, s), s), mx::matmul(transposed(change, s), kept, s), s);
  return y;
}

} // namespace

Arrays delta_plainly(const DeltaInputs& in, const DeltaSettings& settings, mx::Stream s) {
  int rows = in.x.shape(0), tokens = in.x.shape(1), heads = in.state.shape(1);
  int value_dim = in.state.shape(2), dim = in.state.shape(3), keys = settings.key_heads * dim, values = heads * value_dim;
  bool scans = settings.rule == Rule::scan;
  auto zero = mx::array(0.0f);
  auto wide = [&](const mx::array& x) { return mx::astype(x, mx::float32, s); };
  auto real = mx::less(mx::arange(0, tokens, mx::int32, s), mx::reshape(in.widths, {rows, 1}, s), s);
  real = mx::expand_dims(real, -1, s);
  auto x = mx::where(real, wide(in.x), zero, s);
  auto part = [&](int from, int size) { return mx::slice(x, {0, 0, from}, {rows, tokens, from + size}, s); };
  auto key_heads = [&](int from) { return split(part(from, keys), settings.key_heads, heads, dim, s); };
  auto q = key_heads(scans ? values + keys : 0), k = key_heads(scans ? values : keys);
  if (!scans) {
    q = mx::multiply(unit(q, s), mx::array(1.0f / std::sqrt(static_cast<float>(dim))), s);
    k = unit(k, s);
  }
  auto v = mx::reshape(part(scans ? 0 : 2 * keys, values), {rows, tokens, heads, value_dim}, s);
  v = mx::swapaxes(v, 1, 2, s);
  // [B, L, H n] to [B, H, L, n], with zeros for tokens past a row's width.
  auto by_head = [&](const mx::array& x) {
    auto split = mx::reshape(mx::where(real, x, zero, s), {rows, tokens, heads, x.shape(2) / heads}, s);
    return mx::swapaxes(split, 1, 2, s);
  };
  auto input = mx::add(wide(in.a), in.bias, s), step = mx::logaddexp(input, zero, s);
  if (scans) {
    step = mx::clip(step, mx::array(settings.least), mx::array(settings.most), s);
  }
  auto rate = settings.rule == Rule::channels ? mx::repeat(in.rate, dim, 0, s) : in.rate;
  auto decay = by_head(
      settings.bound < 0 ? mx::multiply(mx::sigmoid(mx::multiply(input, rate, s), s), mx::array(settings.bound), s)
                         : mx::negative(mx::multiply(step, rate, s), s));
  auto beta = by_head(scans ? step : mx::multiply(mx::sigmoid(wide(in.b), s), mx::array(settings.most), s));
  // With a decay for each channel the products within a chunk have an axis more, so chunks are smaller.
  int n = 1, most = settings.rule == Rule::channels ? 16 : 64;
  while (n < tokens && n < most) {
    n *= 2;
  }
  int more = (n - tokens % n) % n;
  auto filled = [&](const mx::array& x) { return more == 0 ? x : mx::pad(x, {2}, {0}, {more}, zero, "constant", s); };
  Tokens all{filled(q), filled(k), filled(v), filled(decay), filled(beta)};
  auto state = in.state;
  Arrays ys;
  for (int from = 0; from < tokens; from += n) {
    auto piece = [&](const mx::array& x) {
      auto stop = x.shape();
      stop[2] = from + n;
      return mx::slice(x, {0, 0, from, 0}, stop, s);
    };
    Tokens own{piece(all.q), piece(all.k), piece(all.v), piece(all.decay), piece(all.beta)};
    ys.push_back(advance(settings.rule, own, state, s));
  }
  auto y = ys.size() == 1 ? ys[0] : mx::concatenate(ys, 2, s);
  y = mx::slice(y, {0, 0, 0, 0}, {rows, heads, tokens, value_dim}, s);
  if (scans) {
    y = mx::add(y, mx::multiply(v, mx::reshape(in.b, {1, heads, 1, 1}, s), s), s);
  }
  y = mx::reshape(mx::swapaxes(y, 1, 2, s), {rows, tokens, values}, s);
  y = mx::astype(mx::where(real, y, zero, s), in.x.dtype(), s);
  return {y, state};
}

namespace {

// The outputs [B, L, values] and states [B, L, ..] after each token, one token after the other.
Arrays each_token(const DeltaInputs& in, const DeltaSettings& settings, mx::Stream s) {
  auto now = in;
  Arrays ys, states;
  for (int i = 0; i < in.x.shape(1); i++) {
    auto token = [&](const mx::array& x) { return mx::slice(x, {0, i, 0}, {x.shape(0), i + 1, x.shape(2)}, s); };
    now.x = token(in.x);
    now.a = token(in.a);
    now.b = settings.rule == Rule::scan ? in.b : token(in.b);
    now.widths = mx::subtract(in.widths, mx::array(i, mx::int32), s);
    auto out = delta_plainly(now, settings, s);
    now.state = out[1];
    ys.push_back(out[0]);
    states.push_back(mx::expand_dims(out[1], 1, s));
  }
  return {mx::concatenate(ys, 1, s), mx::concatenate(states, 1, s)};
}

} // namespace

Arrays ragged_delta_plainly(const RaggedDeltaInputs& in, const DeltaSettings& settings, mx::Stream s) {
  const auto& rows = in.rows;
  int tokens = in.x.shape(1), count = rows.count(), longest = rows.settings.longest;
  auto shape = in.state(settings.key_heads);
  auto one = [&](int n) { return mx::array(n, mx::int32); };
  auto starts = mx::slice(rows.starts, {0}, {count}, s), ends = mx::slice(rows.starts, {1}, {count + 1}, s);
  auto widths = mx::subtract(ends, starts, s);
  // The tokens of each row: [B, longest].
  auto place = mx::reshape(mx::arange(0, longest, mx::int32, s), {1, longest}, s);
  auto own = mx::clip(mx::add(mx::reshape(starts, {count, 1}, s), place, s), one(0), one(tokens - 1), s);
  // Tokens of no row may hold anything, and must have no effect on derivatives either.
  auto of = token_rows(rows, tokens, s);
  auto column = [&](const mx::array& a) { return mx::reshape(a, {tokens, 1}, s); };
  auto by_row = [&](const mx::array& x) {
    return mx::take(mx::where(column(of.real), mx::squeeze(x, 0, s), mx::array(0.0f, x.dtype()), s), own, 0, s);
  };
  shape.insert(shape.begin(), count);
  DeltaInputs dense{
      by_row(in.x), by_row(in.a), settings.rule == Rule::scan ? in.b : by_row(in.b), in.rate, in.bias,
      rows.settings.has_pool ? states_of(*rows.pool, *rows.from, s) : mx::zeros(shape, mx::float32, s), widths};
  auto out = rows.settings.each ? each_token(dense, settings, s) : delta_plainly(dense, settings, s);
  auto y = mx::reshape(out[0], {count * longest, shape[1] * shape[2]}, s);
  auto at = mx::add(mx::multiply(of.row, one(longest), s), mx::minimum(of.place, one(longest - 1), s), s);
  y = mx::where(column(of.real), mx::take(y, at, 0, s), mx::array(0.0f, y.dtype()), s);
  // A row with more tokens than the caller has promised must not look computed.
  auto too_long = mx::greater_equal(of.place, one(longest), s);
  auto nan = mx::array(std::numeric_limits<float>::quiet_NaN(), y.dtype());
  y = mx::where(column(mx::logical_and(of.real, too_long, s)), nan, y, s);
  Arrays all{mx::expand_dims(y, 0, s)};
  if (!rows.settings.has_pool) {
    return all;
  }
  auto is_own = mx::less(place, mx::reshape(widths, {count, 1}, s), s);
  if (rows.settings.each) {
    auto slots = mx::where(is_own, mx::take(*rows.to, own, 0, s), one(-1), s);
    shape[0] = count * longest;
    all.push_back(with_states(*rows.pool, mx::reshape(slots, {-1}, s), mx::reshape(out[1], shape, s), s));
  } else {
    auto slots = mx::where(mx::greater(widths, one(0), s), *rows.to, one(-1), s);
    all.push_back(with_states(*rows.pool, slots, out[1], s));
  }
  return all;
}

} // namespace mlxrs::ops
