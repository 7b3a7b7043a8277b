// Causal convolutions as graphs of MLX's operations, in f32.
#include "conv.h"

namespace mlxrs::ops {

mx::array causal_conv_plainly(const Arrays& in, bool silu, mx::Stream s) {
  const auto &x = in[0], &taps = in[1];
  auto wide = mx::astype(x, mx::float32, s), weights = mx::astype(taps, mx::float32, s);
  int rows = x.shape(0), count = taps.shape(0), channels = x.shape(2), tokens = x.shape(1) - count + 1;
  std::optional<mx::array> sum;
  for (int j = 0; j < count; j++) {
    auto inputs = mx::slice(wide, {0, j, 0}, {rows, j + tokens, channels}, s);
    auto term = mx::multiply(inputs, mx::slice(weights, {j, 0}, {j + 1, channels}, s), s);
    sum = sum ? mx::add(*sum, term, s) : term;
  }
  if (in.size() > 2) {
    sum = mx::add(*sum, mx::astype(in[2], mx::float32, s), s);
  }
  return mx::astype(silu ? mx::multiply(*sum, mx::sigmoid(*sum, s), s) : *sum, x.dtype(), s);
}

} // namespace mlxrs::ops
