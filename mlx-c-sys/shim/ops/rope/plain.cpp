// Rotary embeddings and heads as graphs of MLX's operations.
#include "mlx/fast.h"

#include "ops/norm/norm.h"
#include "rope.h"

namespace mlxrs::ops {

mx::array rope_plainly(
    const mx::array& x,
    const RopeOptions& options,
    const mx::array& offset,
    const std::optional<mx::array>& freqs,
    mx::Stream s) {
  const auto& [dims, traditional, base, scale] = options;
  if (has_positions(offset)) {
    // Each token becomes a row of one token.
    auto shape = x.shape(), each = x.shape();
    int tokens = shape[shape.size() - 2];
    auto apart = mx::moveaxis(x, -2, 1, s);
    auto moved = apart.shape();
    each.erase(each.end() - 2);
    each[0] *= tokens;
    each.insert(each.end() - 1, 1);
    auto y = rope_plainly(mx::reshape(apart, each, s), options, mx::reshape(offset, {each[0]}, s), freqs, s);
    return mx::moveaxis(mx::reshape(y, moved, s), 1, -2, s);
  }
  if (s.device != mx::Device::gpu) {
    return mx::fast::rope(x, dims, traditional, base, scale, offset, freqs, s);
  }
  // MLX 0.32.4 has two faults on CUDA: it reads past the end of an `offset` array with one element, and it computes
  // wrong rotations of an x that is broadcast along its tokens.
  auto at = offset.size() == 1 ? mx::reshape(offset, {}, s) : offset;
  auto rotate = [=, dims = dims, traditional = traditional, base = base](const mx::array& x, float scale) {
    return mx::fast::rope(mx::contiguous(x, false, s), dims, traditional, base, scale, at, freqs, s);
  };
  if (!x.is_tracer()) {
    return rotate(x, scale);
  }
  // The cotangent of the result can be broadcast too. The transpose of a rotation is the rotation by the negative
  // angle.
  auto forward = [=, scale = scale](const Arrays& in) { return Arrays{rotate(in[0], scale)}; };
  auto back = [=, scale = scale](const Arrays&, const Arrays& dy, const Arrays&) { return Arrays{rotate(dy[0], -scale)}; };
  return mx::custom_vjp(forward, back)({x})[0];
}

mx::array heads_plainly(const Projection& of, mx::Stream s) {
  const auto& [rope, dim, eps] = of.options;
  auto y = mx::swapaxes(mx::unflatten(of.x, -1, {-1, dim}, s), -2, -3, s);
  if (of.weight) {
    y = rms_norm_plainly(y, of.weight, eps, s);
  }
  return rope_plainly(y, rope, of.offset, of.freqs, s);
}

mx::array heads_in_form(const Projection& of, mx::Stream s) {
  return run(MLXRS_OP_ROPE, s, [&] { return heads(of, s); }, [&] { return heads_plainly(of, s); });
}

} // namespace mlxrs::ops
