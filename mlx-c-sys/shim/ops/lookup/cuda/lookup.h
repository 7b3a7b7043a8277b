#pragma once

#include <span>

#include "cuda/launch.h"
#include "ops/linear/linear.h"

namespace mlxrs::ops {

// Launches the kernel for a coding (named as by `codes_on_cuda`) and a type of results.
void launch_lookup(cuda::Launch& launch, const cuda::LookupArgs& args, const std::string& codes, const std::string& type);
// `parts` are the matrix and, if it is quantised, its scales and biases; `packing` is not used for a dense matrix.
// Without indices y is the whole matrix.
void lookup_on_cuda(
    const mx::array* indices, std::span<const mx::array> parts, const Packing& packing, mx::array& y, mx::Stream s);

} // namespace mlxrs::ops
