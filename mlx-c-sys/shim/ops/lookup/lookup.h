// Rows of a matrix, such as an embedding.
#pragma once

#include "ops/linear/operands.h"

namespace mlxrs::ops {

// The rows that `indices` name, [..] -> [.., in].
std::optional<mx::array> lookup(const mx::array& indices, const Parts& w, mx::Dtype dtype, mx::Stream s);
// The whole of a quantised matrix, on a GPU, as its kernels dequantise it for products.
mx::array expanded(const Parts& w, const Coded& coded, mx::Dtype dtype, mx::Stream s);
mx::array lookup_plainly(const mx::array& indices, const Parts& w, mx::Dtype dtype, mx::Stream s);

} // namespace mlxrs::ops
