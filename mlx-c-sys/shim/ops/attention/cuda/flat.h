// Attention of a flat step on CUDA.
#pragma once

#include "ops/attention/flat.h"

namespace mlxrs::ops {

// Whether the CUDA kernels support these operands: no pages or pages of 64 positions, and what attention over arrays
// supports.
bool flat_fits_cuda(const FlatInputs& of, const FlatOptions& options);
void flat_attention_on_cuda(const FlatInputs& of, mx::array& y, const FlatOptions& options, mx::Stream s);

} // namespace mlxrs::ops
