// Products without elements, in place of MLX's. MLX queues a copy of an operand that is not dense, finds that the
// result has no elements, and frees the copy's memory while the stream still writes to it. Here the result is an array
// without elements, and no operand is read. libmlx calls these functions through its symbol table, where the
// definitions of libmlxc come first.
#ifdef __linux__

#include "mlx/ops.h"

#include "of_mlx.h"

namespace mlx::core {

namespace {

array or_empty(array y, StreamOrDevice s) {
  return y.size() == 0 ? zeros(y.shape(), y.dtype(), s) : std::move(y);
}

} // namespace

array matmul(const array& a, const array& b, StreamOrDevice s) {
  static auto* mlx = mlxrs::of_mlx<array(const array&, const array&, StreamOrDevice)>(
      "_ZN3mlx4core6matmulERKNS0_5arrayES3_St7variantIJSt9monostateNS0_6StreamENS0_17ThreadLocalStreamENS0_6DeviceENS8_"
      "10DeviceTypeEEE");
  return or_empty(mlx(a, b, s), s);
}

array addmm(array c, array a, array b, const float& alpha, const float& beta, StreamOrDevice s) {
  static auto* mlx = mlxrs::of_mlx<array(array, array, array, const float&, const float&, StreamOrDevice)>(
      "_ZN3mlx4core5addmmENS0_5arrayES1_S1_RKfS3_St7variantIJSt9monostateNS0_6StreamENS0_17ThreadLocalStreamENS0_"
      "6DeviceENS8_10DeviceTypeEEE");
  return or_empty(mlx(std::move(c), std::move(a), std::move(b), alpha, beta, s), s);
}

array gather_mm(
    array a, array b, std::optional<array> lhs_indices, std::optional<array> rhs_indices, bool sorted_indices,
    StreamOrDevice s) {
  static auto* mlx =
      mlxrs::of_mlx<array(array, array, std::optional<array>, std::optional<array>, bool, StreamOrDevice)>(
          "_ZN3mlx4core9gather_mmENS0_5arrayES1_St8optionalIS1_ES3_bSt7variantIJSt9monostateNS0_6StreamENS0_"
          "17ThreadLocalStreamENS0_6DeviceENS8_10DeviceTypeEEE");
  return or_empty(
      mlx(std::move(a), std::move(b), std::move(lhs_indices), std::move(rhs_indices), sorted_indices, s), s);
}

} // namespace mlx::core

#endif
