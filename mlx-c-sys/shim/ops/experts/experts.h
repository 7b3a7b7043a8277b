// Matrix products of a mixture of experts: each row of x is multiplied with the matrix of one expert, chosen by an
// index.
#pragma once

#include "ops/gated/gated.h"
#include "ops/linear/operands.h"

namespace mlxrs::ops {

// For each index i, x [.., 1, in] times the transpose of w[i], where w is [experts, out, in]. The result is [.., 1,
// out]. `experts` returns nothing for operands that our kernels do not support; `experts_plainly` uses MLX's
// operations.
std::optional<mx::array> experts(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);
mx::array experts_plainly(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);

// gate(x a^T) * (x b^T) as one node, where a and b are the matrices that the index selects from the two stacks `ws`.
// Returns nothing where no fused kernel exists: on CPUs, and for two stacks of different codings.
std::optional<mx::array> gated_experts(
    Gate gate, const mx::array& x, const std::array<Parts, 2>& ws, const mx::array& indices, mx::Stream s);

// The coding of the stack `w`, or nothing if our kernels for the stream do not support these operands.
std::optional<Coded> experts_kind(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);
// x [.., 1, in] and the indices, broadcast to the same leading dimensions, so that there is one row of x for each
// index.
Arrays rows_and_indices(const mx::array& x, const mx::array& indices, mx::Stream s);

} // namespace mlxrs::ops
