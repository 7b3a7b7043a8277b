#include "checked.h"
#include "experts.h"

namespace mlxrs::ops {

mx::array experts_plainly(const mx::array& x, const Parts& w, const mx::array& given, mx::Stream s) {
  auto indices = check_indices("experts", given, w.weight, {}, {1}, false, s);
  if (!w.scales) {
    auto product = [&](const mx::array& x, const mx::array& w) {
      return mx::gather_mm(x, mx::swapaxes(w, -1, -2, s), std::nullopt, indices, false, s);
    };
    if (s.device != mx::Device::cpu || x.dtype() == mx::float32) {
      return product(x, w.weight);
    }
    // On the CPU, MLX supports only f32.
    auto wide = [&](const mx::array& a) { return mx::astype(a, mx::float32, s); };
    return mx::astype(product(wide(x), wide(w.weight)), x.dtype(), s);
  }
  const auto& packing = w.packing;
  // As in linear_plainly.
  if (is_wrong_on_gpus(w, s) || (is_on_cuda(s) && x.dtype() == mx::float32)) {
    return experts_plainly(x, {dequantized(w, x.dtype(), s), std::nullopt, std::nullopt, packing}, indices, s);
  }
  auto y = mx::gather_qmm(
      x, w.weight, *w.scales, w.biases, std::nullopt, indices, true, packing.group, packing.bits, packing.mode,
      std::nullopt, false, s);
  // MLX divides by the number of rows, so empty products are zeros here.
  return x.size() == 0 || w.weight.size() == 0 ? mx::zeros(y.shape(), y.dtype(), s) : y;
}

} // namespace mlxrs::ops
