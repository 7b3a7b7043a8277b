#pragma once

#include <string>
#include <vector>

#include "core/checked.h"
#include "cuda/launch.h"

namespace mlxrs::ops {

namespace mx = mlx::core;

// Copies the indices to `y`. An index out of range becomes 0, and is reported as an error of operation `what`.
void check_on_cuda(const std::string& what, const mx::array& indices, const std::vector<Range>& ranges, mx::array& y, mx::Stream s);

} // namespace mlxrs::ops
