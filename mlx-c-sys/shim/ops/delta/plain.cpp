#include <cmath>
#include <limits>

#include "delta.h"

namespace mlxrs::ops {
namespace {

// A constant [n, n]: `on` where `is(i, j)`, else `off`.
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

// (I + a)^-1 for a strictly lower triangular `a` [.., n, n], n a power of two: the inverse of blocks of 2m from those of m, as
// of [[p, 0], [a, q]] it is [[p^-1, 0], [-q^-1 a p^-1, q^-1]].
mx::array unit_inverse(const mx::array& a, int n, mx::Stream s) {
  auto inverse = mx::broadcast_to(square(n, 1, 0, [](int i, int j) { return i == j; }), a.shape(), s);
  for (int m = 1; m < n; m *= 2) {
    auto below = square(n, 1, 0, [m](int i, int j) { return i / (2 * m) == j / (2 * m) && i / m > j / m; });
    auto blocks = mx::multiply(a, below, s);
    inverse = mx::subtract(inverse, mx::matmul(inverse, mx::matmul(blocks, inverse, s), s), s);
  }
  return inverse;
}

// Queries or keys [B, L, K D] in heads [B, H, L, D], each of length 1.
mx::array unit_heads(const mx::array& x, int key_heads, int heads, int dim, mx::Stream s) {
  auto split = mx::reshape(x, {x.shape(0), x.shape(1), key_heads, dim}, s);
  auto squares = mx::sum(mx::square(split, s), -1, true, s);
  auto unit = mx::multiply(split, mx::rsqrt(mx::add(squares, mx::array(1e-6f), s), s), s);
  return mx::swapaxes(mx::repeat(unit, heads / key_heads, 2, s), 1, 2, s);
}

// One chunk: q and k [B, H, n, D], v [B, H, n, V], the logarithms of the decays and betas [B, H, n, 1]. Changes the state, and
// returns what the tokens read.
mx::array advance(
    const mx::array& q, const mx::array& k, const mx::array& v, const mx::array& decay, const mx::array& beta,
    mx::array& state, mx::Stream s) {
  int n = q.shape(2);
  // The decay from the start of the chunk to each token, and from token j to token i.
  auto so_far = mx::cumsum(decay, 2, false, true, s);
  auto between = mx::subtract(so_far, transposed(so_far, s), s);
  auto past = square(n, 0, -std::numeric_limits<float>::infinity(), [](int i, int j) { return i >= j; });
  auto is_past = mx::equal(past, mx::array(0.0f), s);
  auto gamma = mx::exp(mx::where(is_past, between, past, s), s);
  auto k_t = transposed(k, s);
  auto strict = square(n, 1, 0, [](int i, int j) { return i > j; });
  auto a = mx::multiply(mx::multiply(mx::multiply(mx::matmul(k, k_t, s), gamma, s), beta, s), strict, s);
  auto inverse = unit_inverse(a, n, s);
  auto grown = mx::exp(so_far, s), state_t = transposed(state, s);
  auto known = mx::matmul(mx::multiply(mx::multiply(k, grown, s), beta, s), state_t, s);
  auto change = mx::matmul(inverse, mx::subtract(mx::multiply(v, beta, s), known, s), s);
  auto read = mx::matmul(mx::multiply(mx::matmul(q, k_t, s), gamma, s), change, s);
  auto y = mx::add(mx::matmul(mx::multiply(q, grown, s), state_t, s), read, s);
  auto shape = so_far.shape();
  auto last = mx::slice(so_far, {0, 0, n - 1, 0}, shape, s);
  auto kept = mx::multiply(k, mx::exp(mx::subtract(last, so_far, s), s), s);
  auto added = mx::matmul(transposed(change, s), kept, s);
  state = mx::add(mx::multiply(state, mx::exp(last, s), s), added, s);
  return y;
}

} // namespace

Arrays gated_delta_plainly(const DeltaInputs& in, int key_heads, mx::Stream s) {
  int rows = in.qkv.shape(0), tokens = in.qkv.shape(1), heads = in.state.shape(1);
  int value_dim = in.state.shape(2), dim = in.state.shape(3), keys = key_heads * dim;
  auto zero = mx::array(0.0f);
  auto wide = [&](const mx::array& x) { return mx::astype(x, mx::float32, s); };
  auto real = mx::less(mx::arange(0, tokens, mx::int32, s), mx::reshape(in.widths, {rows, 1}, s), s);
  real = mx::expand_dims(real, -1, s);
  auto qkv = mx::where(real, wide(in.qkv), zero, s);
  auto part = [&](int from, int to) { return mx::slice(qkv, {0, 0, from}, {rows, tokens, to}, s); };
  auto q = mx::multiply(
      unit_heads(part(0, keys), key_heads, heads, dim, s), mx::array(1.0f / std::sqrt(static_cast<float>(dim))), s);
  auto k = unit_heads(part(keys, 2 * keys), key_heads, heads, dim, s);
  auto v = mx::reshape(part(2 * keys, 2 * keys + heads * value_dim), {rows, tokens, heads, value_dim}, s);
  v = mx::swapaxes(v, 1, 2, s);
  auto by_head = [&](const mx::array& x) {
    return mx::expand_dims(mx::swapaxes(mx::where(real, x, zero, s), 1, 2, s), -1, s);
  };
  auto beta = by_head(mx::sigmoid(wide(in.b), s));
  auto softplus = mx::logaddexp(mx::add(wide(in.a), in.bias, s), zero, s);
  auto decay = by_head(mx::negative(mx::multiply(softplus, in.rate, s), s));
  int n = 1;
  while (n < tokens && n < 64) {
    n *= 2;
  }
  int more = (n - tokens % n) % n;
  auto filled = [&](const mx::array& x) { return more == 0 ? x : mx::pad(x, {2}, {0}, {more}, zero, "constant", s); };
  Arrays all{filled(q), filled(k), filled(v), filled(decay), filled(beta)};
  auto state = in.state;
  Arrays ys;
  for (int from = 0; from < tokens; from += n) {
    auto piece = [&](const mx::array& x) {
      auto stop = x.shape();
      stop[2] = from + n;
      return mx::slice(x, {0, 0, from, 0}, stop, s);
    };
    ys.push_back(advance(piece(all[0]), piece(all[1]), piece(all[2]), piece(all[3]), piece(all[4]), state, s));
  }
  auto y = ys.size() == 1 ? ys[0] : mx::concatenate(ys, 2, s);
  y = mx::slice(y, {0, 0, 0, 0}, {rows, heads, tokens, value_dim}, s);
  y = mx::reshape(mx::swapaxes(y, 1, 2, s), {rows, tokens, heads * value_dim}, s);
  y = mx::astype(mx::where(real, y, zero, s), in.qkv.dtype(), s);
  return {y, state};
}

} // namespace mlxrs::ops
