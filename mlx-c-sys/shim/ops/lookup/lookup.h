// Reads rows of a dense or quantised matrix, such as an embedding.
#pragma once

#include "ops/linear/operands.h"

namespace mlxrs::ops {

// The rows that `indices` select, unpacked to `dtype`: [..] -> [.., in]. Negative indices count from the end.
std::optional<mx::array> lookup(const mx::array& indices, const Parts& w, mx::Dtype dtype, mx::Stream s);
// A whole quantised matrix, unpacked on a GPU with the same bits that its product kernels compute.
mx::array expanded(const Parts& w, const Coded& coded, mx::Dtype dtype, mx::Stream s);
mx::array lookup_plainly(const mx::array& indices, const Parts& w, mx::Dtype dtype, mx::Stream s);

} // namespace mlxrs::ops
