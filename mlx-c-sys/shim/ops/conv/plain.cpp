// Causal convolutions as graphs of MLX's operations, in f32.
#include "conv.h"

namespace mlxrs::ops {
namespace {

// The sum over taps, with the bias, through SiLU if `silu`. inputs(j) are those for tap j, in f32.
template <class Inputs>
mx::array convolved(const Arrays& in, bool silu, const Inputs& inputs, mx::Stream s) {
  auto weights = mx::astype(in[1], mx::float32, s);
  int channels = weights.shape(1);
  std::optional<mx::array> sum;
  for (int j = 0; j < weights.shape(0); j++) {
    auto term = mx::multiply(inputs(j), mx::slice(weights, {j, 0}, {j + 1, channels}, s), s);
    sum = sum ? mx::add(*sum, term, s) : term;
  }
  if (in.size() > 2) {
    sum = mx::add(*sum, mx::astype(in[2], mx::float32, s), s);
  }
  return silu ? mx::multiply(*sum, mx::sigmoid(*sum, s), s) : *sum;
}

} // namespace

mx::array causal_conv_plainly(const Arrays& in, bool silu, mx::Stream s) {
  const auto& x = in[0];
  auto wide = mx::astype(x, mx::float32, s);
  int rows = x.shape(0), channels = x.shape(2), tokens = x.shape(1) - in[1].shape(0) + 1;
  auto inputs = [&](int j) { return mx::slice(wide, {0, j, 0}, {rows, j + tokens, channels}, s); };
  return mx::astype(convolved(in, silu, inputs, s), x.dtype(), s);
}

Arrays ragged_conv_plainly(const Arrays& in, bool silu, const Ragged& rows, mx::Stream s) {
  const auto& x = in[0];
  int tokens = x.shape(1), channels = x.shape(2), count = in[1].shape(0), len = count - 1;
  auto zero = mx::array(0.0f, x.dtype());
  auto of = token_rows(rows, tokens, s);
  auto real = mx::reshape(of.real, {tokens, 1}, s);
  auto clean = mx::where(real, mx::reshape(x, {tokens, channels}, s), zero, s);
  // The inputs for the taps of each token: [T, J, C]. `place` is where they are in the row, below 0 in its state.
  auto taps = mx::reshape(mx::arange(-len, 1, mx::int32, s), {1, count}, s);
  auto place = mx::add(mx::reshape(of.place, {tokens, 1}, s), taps, s);
  auto last = mx::array(tokens - 1, mx::int32), first = mx::array(0, mx::int32);
  auto token = mx::clip(mx::add(mx::reshape(mx::arange(0, tokens, mx::int32, s), {tokens, 1}, s), taps, s), first, last, s);
  auto before = mx::broadcast_to(zero, {tokens, count, channels}, s);
  if (rows.settings.has_pool) {
    // Of each row first, [B, len, C], so that no more than the rows' states are read.
    auto windows = mx::reshape(states_of(*rows.pool, *rows.from, s), {rows.count() * len, channels}, s);
    auto in_window = mx::clip(mx::add(place, mx::array(len, mx::int32), s), first, mx::array(len - 1, mx::int32), s);
    auto start = mx::reshape(mx::multiply(of.row, mx::array(len, mx::int32), s), {tokens, 1}, s);
    before = mx::take(windows, mx::add(start, in_window, s), 0, s);
  }
  auto is_own = mx::expand_dims(mx::greater_equal(place, first, s), 2, s);
  auto inputs = mx::where(is_own, mx::take(clean, token, 0, s), before, s);
  auto wide = mx::astype(inputs, mx::float32, s);
  auto y = convolved(
      in, silu, [&](int j) { return mx::squeeze(mx::slice(wide, {0, j, 0}, {tokens, j + 1, channels}, s), 1, s); }, s);
  Arrays out{mx::reshape(mx::astype(mx::where(real, y, mx::array(0.0f), s), x.dtype(), s), x.shape(), s)};
  if (rows.settings.has_pool) {
    // The window after a token are the inputs for all taps but the first.
    auto after = mx::slice(inputs, {0, 1, 0}, inputs.shape(), s);
    out.push_back(with_states(*rows.pool, slots_of_tokens(rows, of, s), after, s));
  }
  return out;
}

} // namespace mlxrs::ops
