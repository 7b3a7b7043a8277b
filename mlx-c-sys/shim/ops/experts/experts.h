// Products of rows with one of several matrices, chosen by an index.
#pragma once

#include "ops/gated/gated.h"
#include "ops/linear/operands.h"

namespace mlxrs::ops {

// For each index, x [.., 1, in] times that matrix of w [experts, out, in].
std::optional<mx::array> experts(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);
mx::array experts_plainly(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);

// gated(x a^T, x b^T) for the indexed matrices of two stacks as one node. Returns nothing where there is no kernel that joins them: on CPUs,
// and for stacks of different codings.
std::optional<mx::array> gated_experts(
    Gate gate, const mx::array& x, const std::array<Parts, 2>& ws, const mx::array& indices, mx::Stream s);

// The coding of the stack, if our kernels for the stream take these operands.
std::optional<Coded> experts_kind(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);
// x [.., 1, in] and the indices, with a row of x for each index: the leading dimensions of both are broadcast.
Arrays rows_and_indices(const mx::array& x, const mx::array& indices, mx::Stream s);

} // namespace mlxrs::ops
