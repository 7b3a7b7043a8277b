#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// `kind` is a Gate, or 2 for a soft cap. A soft cap has no `up`.
void gated_on_cuda(int kind, const mx::array& gate, const mx::array* up, float cap, mx::array& y, mx::Stream s);

} // namespace mlxrs::ops
