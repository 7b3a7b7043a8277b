// Loops over the elements of evaluated arrays with any strides.
#pragma once

#include <cstdint>

#include "mlx/array.h"

namespace mlxrs {

// Calls `pass(value, place)` for each element of `in` in row-major order, and writes the results to `out`.
template <typename T, typename Pass>
void each(const mlx::core::array& in, T* out, const Pass& pass) {
  const T* from = in.data<T>();
  size_t n = in.size();
  if (in.flags().row_contiguous) {
    for (size_t i = 0; i < n; i++) {
      out[i] = pass(from[i], i);
    }
    return;
  }
  // Row by row of the last axis.
  int64_t wide = in.shape(-1), step = in.strides(-1);
  for (size_t i = 0; i < n; i += wide) {
    const T* row = from;
    size_t rest = i / wide;
    for (int axis = static_cast<int>(in.ndim()) - 2; axis >= 0; axis--) {
      row += static_cast<int64_t>(rest % in.shape(axis)) * in.strides(axis);
      rest /= in.shape(axis);
    }
    for (int64_t j = 0; j < wide; j++) {
      out[i + j] = pass(row[j * step], i + j);
    }
  }
}

}  // namespace mlxrs
