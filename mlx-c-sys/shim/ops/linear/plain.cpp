#include "linear.h"

namespace mlxrs::ops {

mx::array linear_plainly(const mx::array& x, const Parts& w, mx::Stream s) {
  if (!w.scales) {
    return mx::matmul(x, mx::swapaxes(w.weight, -1, -2, s), s);
  }
  const auto& [group, bits, mode] = w.packing;
  if (is_wrong_on_gpus(*w.scales, s)) {
    auto wide = mx::dequantize(w.weight, *w.scales, w.biases, group, bits, mode, std::nullopt, x.dtype(), s);
    return mx::matmul(x, mx::swapaxes(wide, -1, -2, s), s);
  }
  auto y = mx::quantized_matmul(x, w.weight, *w.scales, w.biases, true, group, bits, mode, s);
  // MLX divides by the number of rows, so empty products are zeros here.
  return x.size() == 0 || w.weight.size() == 0 ? mx::zeros(y.shape(), y.dtype(), s) : y;
}

mx::array linear_in_form(const mx::array& x, const Parts& w, mx::Stream s) {
  return run(MLXRS_OP_LINEAR, s, [&] { return linear(x, w, s); }, [&] { return linear_plainly(x, w, s); });
}

Arrays linear_many_in_form(const mx::array& x, const std::vector<Parts>& ws, mx::Stream s) {
  return run(MLXRS_OP_LINEAR, s, [&] { return linear_many(x, ws, s); }, [&] {
    Arrays ys;
    for (const auto& w : ws) {
      ys.push_back(linear_in_form(x, w, s));
    }
    return ys;
  });
}

} // namespace mlxrs::ops
