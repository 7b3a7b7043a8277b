#pragma once

#include "cuda/launch.h"
#include "ops/attention/attention.h"

namespace mlxrs::ops {

// Heads that the kernels take.
inline bool fits_cuda(const mx::array& q, const mx::array& v, const AttentionOptions& options) {
  auto is_usual = [](int dim) { return dim % 8 == 0 && dim <= 256; };
  return options.packing.bits == 0 && options.mask != Mask::array && is_usual(q.shape(3)) && is_usual(v.shape(3));
}
void attention_on_cuda(const Arrays& in, mx::array& y, const AttentionOptions& options, bool sinks, mx::Stream s);

} // namespace mlxrs::ops
