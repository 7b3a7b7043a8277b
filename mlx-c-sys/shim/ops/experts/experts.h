// Products of rows with one of several matrices, chosen by an index.
#pragma once

#include "ops/linear/linear.h"

namespace mlxrs::ops {

// For each index, x [.., 1, in] times that matrix of w [experts, out, in].
std::optional<mx::array> experts(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);
mx::array experts_plainly(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);

} // namespace mlxrs::ops
