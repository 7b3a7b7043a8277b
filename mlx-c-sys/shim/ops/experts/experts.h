// Products with one of several matrices, which an index names.
#pragma once

#include "ops/linear/linear.h"

namespace mlxrs::ops {

// x [.., 1, in] by the matrix of w [experts, out, in] that indices name.
std::optional<mx::array> experts(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);
mx::array experts_plainly(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);

} // namespace mlxrs::ops
