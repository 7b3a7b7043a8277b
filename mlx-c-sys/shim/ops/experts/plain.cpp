// Products of experts as graphs of MLX's operations.
#include "core/checked.h"
#include "experts.h"

namespace mlxrs::ops {
namespace {

// x [.., k] times the transpose of the matrix of w [experts, n, k] that each index selects, by MLX.
mx::array gathered(const mx::array& x, const mx::array& w, const mx::array& indices, mx::Stream s) {
  auto product = [&](const mx::array& x, const mx::array& w) {
    return mx::gather_mm(x, mx::swapaxes(w, -1, -2, s), std::nullopt, indices, false, s);
  };
#ifdef MLXRS_CUDA
  // MLX 0.32.4's CUDA kernel reads 16 bytes at a time and checks only that k is a multiple of 8. A gradient exchanges k
  // and n, and then reads rows at addresses that are no multiples of 16. Zeros make both multiples of 8.
  int n = w.shape(-2), k = w.shape(-1), n_more = -n & 7, k_more = -k & 7;
  if (s.device == mx::Device::gpu && (n_more | k_more) != 0) {
    auto zeros = [&](const mx::array& a, int rows, int columns) {
      std::vector<std::pair<int, int>> widths(a.ndim());
      widths[a.ndim() - 2].second = rows;
      widths[a.ndim() - 1].second = columns;
      return mx::pad(a, widths, mx::array(0, a.dtype()), "constant", s);
    };
    auto y = product(zeros(x, 0, k_more), zeros(w, n_more, k_more));
    auto to = y.shape();
    to.back() = n;
    return mx::slice(y, mx::Shape(y.ndim(), 0), to, s);
  }
#endif
  return product(x, w);
}

} // namespace

mx::array experts_plainly(const mx::array& x, const Parts& w, const mx::array& given, mx::Stream s) {
  auto indices = check_indices("experts", given, w.weight, {}, {1}, false, s);
  if (!w.scales) {
    if (s.device != mx::Device::cpu || x.dtype() == mx::float32) {
      return gathered(x, w.weight, indices, s);
    }
    // On the CPU, MLX supports only f32.
    auto wide = [&](const mx::array& a) { return mx::astype(a, mx::float32, s); };
    return mx::astype(gathered(wide(x), wide(w.weight), indices, s), x.dtype(), s);
  }
  const auto& packing = w.packing;
  if (is_wrong_on_gpus(w, x.dtype(), s)) {
    return experts_plainly(x, {dequantized(w, x.dtype(), s), std::nullopt, std::nullopt, packing}, indices, s);
  }
  auto y = mx::gather_qmm(
      x, w.weight, *w.scales, w.biases, std::nullopt, indices, true, packing.group, packing.bits, packing.mode,
      std::nullopt, false, s);
  // MLX would divide by the number of rows, which is 0 in an empty product. Empty products return zeros here.
  return x.size() == 0 || w.weight.size() == 0 ? mx::zeros(y.shape(), y.dtype(), s) : y;
}

} // namespace mlxrs::ops
