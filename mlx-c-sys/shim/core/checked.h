// Checks of indices as nodes of the graph (see checked.cpp).
#pragma once

#include <string>
#include <vector>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlxrs {

// mlxrs_check_indices (mlxrs.h) as a C++ function.
mlx::core::array check_indices(
    const std::string& what, const mlx::core::array& indices, const mlx::core::array& source, std::vector<int> axes,
    std::vector<int> windows, bool from_end, mlx::core::Stream s);

// The range of an index: 0 to `most`, so that `window` places exist from it on in an axis of `size`. `from_end` is
// added to negative indices; it is 0 if they are refused.
struct Range {
  int64_t most, from_end, size;
  int window;

  bool holds(int64_t i) const {
    return i < 0 ? i + from_end >= 0 && i + from_end <= most && from_end > 0 : i <= most;
  }
};

// The texts of the errors.
std::string index_error(const std::string& what, int64_t index, int64_t size, int window);
std::string row_error(int64_t row, int64_t rows);
std::string expert_error(int64_t expert, int64_t experts);

} // namespace mlxrs
