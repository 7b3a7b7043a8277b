// Products with matrices as graphs of MLX's operations.
#include "linear.h"

#ifdef MLXRS_CUDA
#include "ops/lookup/lookup.h"
#endif

namespace mlxrs::ops {
namespace {

// The unpacked matrix in `dtype`.
mx::array unpacked(const Parts& w, mx::Dtype dtype, mx::Stream s) {
#ifdef MLXRS_CUDA
  auto coding = coding_of(w.packing.mode);
  int64_t columns = static_cast<int64_t>(w.weight.shape(-1)) * 32 / w.packing.bits;
  if (form(MLXRS_OP_LOOKUP, s) == Form::cuda && coding && dtype != mx::float32 && w.weight.ndim() == 2 && w.weight.size() > 0 &&
      w.packing.bits > 1 && columns % 32 == 0 && packs(columns, dtype, w)) {
    return expanded(w, Coded{*coding, w.packing}, dtype, s);
  }
#endif
  return dequantized(w, dtype, s);
}

// x w^T with the unpacked matrix. Its memory is free between the forward pass and the backward pass, which unpacks the
// matrix again.
mx::array unpacked_product(const mx::array& x, const Parts& w, mx::Stream s) {
  auto wide = [w, dtype = x.dtype(), s] { return unpacked(w, dtype, s); };
  auto product = [=](const Arrays& in) { return Arrays{mx::matmul(in[0], mx::swapaxes(wide(), -1, -2, s), s)}; };
  if (!x.is_tracer() || is_traced({&w.weight, &*w.scales, w.biases ? &*w.biases : &w.weight})) {
    return product({x})[0];
  }
  auto derivative = [=](const Arrays&, const Arrays& dy, const Arrays&) { return Arrays{mx::matmul(dy[0], wide(), s)}; };
  return mx::custom_vjp(product, derivative)({x})[0];
}

} // namespace

mx::array linear_plainly(const mx::array& x, const Parts& w, mx::Stream s) {
  if (!w.scales) {
    return mx::matmul(x, mx::swapaxes(w.weight, -1, -2, s), s);
  }
  const auto& [group, bits, mode] = w.packing;
  // On GPUs, MLX's product with a transposed packed matrix is slow. Gradients consist of such products, so traced
  // products unpack the matrix.
  if (is_wrong_on_gpus(w, x.dtype(), s) || (s.device == mx::Device::gpu && x.is_tracer())) {
    return unpacked_product(x, w, s);
  }
  auto y = mx::quantized_matmul(x, w.weight, *w.scales, w.biases, true, group, bits, mode, s);
  // MLX would divide by the number of rows, which is 0 in an empty product. Empty products return zeros here.
  return x.size() == 0 || w.weight.size() == 0 ? mx::zeros(y.shape(), y.dtype(), s) : y;
}

} // namespace mlxrs::ops
