#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// `kind` is a Gate, or 2 for a soft cap. A soft cap has no `up`.
void gated_on_cuda(int kind, const mx::array& gate, const mx::array* up, float cap, mx::array& y, mx::Stream s);
// The gradients of a gate. `in` are gate, up and dy, of the same 16-bit dtype; `out` are dgate and dup.
void gated_vjp_on_cuda(int kind, const Arrays& in, Arrays& out, mx::Stream s);

} // namespace mlxrs::ops
