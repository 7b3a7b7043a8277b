#pragma once

#include "ops/linear/linear.h"

namespace mlxrs::ops {

// Rows of a matrix, whose parts follow the indices in `in`. `packing` means nothing for a dense one.
void lookup_on_cuda(const Arrays& in, const Packing& packing, mx::array& y, mx::Stream s);

} // namespace mlxrs::ops
