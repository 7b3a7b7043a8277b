#pragma once

#include <string>
#include <vector>

#include "checked.h"
#include "cuda/launch.h"

namespace mlxrs::ops {

namespace mx = mlx::core;

// Writes checked indices to `y`, and reports those outside of their range.
void check_on_cuda(const std::string& what, const mx::array& indices, const std::vector<Range>& ranges, mx::array& y, mx::Stream s);

} // namespace mlxrs::ops
