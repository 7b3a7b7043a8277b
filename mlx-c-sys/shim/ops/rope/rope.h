// Rotary position embedding, alone and fused with the split of a projection into heads and their norm.
#pragma once

#include <span>

#include "ops/node.h"

namespace mlxrs::ops {

// Element pairs of the first `dims` are rotated by position * scale * frequency. Frequencies follow from
// `base`, or are 1 / freqs; exactly one of both is given. Pairs are (2i, 2i + 1) if `traditional`, else (i, i + dims /
// 2).
struct RopeOptions {
  int dims;
  bool traditional;
  std::optional<float> base;
  float scale;

  bool operator==(const RopeOptions&) const = default;
};
// `offset` is the position of each row's first token, [B] or [1], or the position of each token, [B, L].
inline bool has_positions(const mx::array& offset) {
  return offset.ndim() == 2;
}
std::optional<mx::array> rope(
    const mx::array& x,
    const RopeOptions& options,
    const mx::array& offset,
    const std::optional<mx::array>& freqs,
    mx::Stream s);
mx::array rope_plainly(
    const mx::array& x,
    const RopeOptions& options,
    const mx::array& offset,
    const std::optional<mx::array>& freqs,
    mx::Stream s);

struct HeadsOptions {
  RopeOptions rope;
  int dim;
  float eps;

  bool operator==(const HeadsOptions&) const = default;
};
// A projection [B, L, H dim] that becomes heads [B, H, L, dim]. With a weight, rms_norm is applied to each head before
// the rotation.
struct Projection {
  mx::array x, offset, freqs;
  std::optional<mx::array> weight;
  HeadsOptions options;

  // The inputs of the node: x, offset, freqs, and the weight if there is one.
  Arrays inputs(mx::Stream s) const;
  // Appends these inputs to `to`.
  void append(Arrays& to, mx::Stream s) const;
  static Projection of(std::span<const mx::array> inputs, const HeadsOptions& options);
  // The shape of the heads.
  mx::Shape shape() const {
    return {x.shape(0), x.shape(2) / options.dim, x.shape(1), options.dim};
  }
};
// The largest head that the CUDA kernels compute.
constexpr int most_head = 512;
// Whether our kernels support these shapes and dtypes.
bool is_usual(const Projection& of);
std::optional<mx::array> heads(const Projection& of, mx::Stream s);
mx::array heads_plainly(const Projection& of, mx::Stream s);
mx::array heads_in_form(const Projection& of, mx::Stream s);

} // namespace mlxrs::ops
