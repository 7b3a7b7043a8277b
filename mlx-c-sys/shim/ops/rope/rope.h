// Rotary position embedding of heads, and of projections that become heads.
#pragma once

#include <span>

#include "ops/node.h"

namespace mlxrs::ops {

// The rotation's speed. Exactly one of `base` and an array of periods is given.
struct RopeOptions {
  int dims;
  bool traditional;
  std::optional<float> base;
  float scale;

  bool operator==(const RopeOptions&) const = default;
};
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
// A projection [B, L, H dim] that becomes heads [B, H, L, dim]. Each head is normed by rms_norm if there is a weight,
// and rotated by rope with `freqs`.
struct Projection {
  mx::array x, offset, freqs;
  std::optional<mx::array> weight;
  HeadsOptions options;

  // The inputs of a node. `weight` comes last.
  Arrays inputs(mx::Stream s) const;
  // Appends the inputs to other inputs.
  void append(Arrays& to, mx::Stream s) const;
  static Projection of(std::span<const mx::array> inputs, const HeadsOptions& options);
  // The shape of the heads.
  mx::Shape shape() const {
    return {x.shape(0), x.shape(2) / options.dim, x.shape(1), options.dim};
  }
};
// Whether our kernels support these shapes and dtypes.
bool is_usual(const Projection& of);
std::optional<mx::array> heads(const Projection& of, mx::Stream s);
mx::array heads_plainly(const Projection& of, mx::Stream s);

} // namespace mlxrs::ops
