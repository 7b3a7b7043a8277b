// Checks of values, as nodes of the graph: see checked.cpp.
#pragma once

#include <string>
#include <vector>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlxrs {

// mlxrs_check_indices, in C++.
mlx::core::array check_indices(
    const std::string& what, const mlx::core::array& indices, const mlx::core::array& source, std::vector<int> axes,
    std::vector<int> windows, bool from_end, mlx::core::Stream s);

} // namespace mlxrs
