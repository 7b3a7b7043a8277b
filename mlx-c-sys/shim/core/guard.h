// Conversions at the C interface: exceptions become the thread's error, and handles become MLX's objects.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "mlx/c/private/array.h"
#include "mlx/c/private/enums.h"
#include "mlx/c/private/stream.h"
#include "mlx/c/private/vector.h"
#include "mlxrs.h"

namespace mlxrs {

namespace mx = mlx::core;

// Runs `f` and turns any exception into the thread's error and a status of 1.
template <typename F>
int guarded(F&& f) {
  try {
    std::forward<F>(f)();
    return 0;
  } catch (const std::exception& e) {
    mlxrs_error_set(e.what());
  } catch (...) {
    mlxrs_error_set("an exception of unknown type");
  }
  return 1;
}

// The dtype for a C enum value. Throws if the value is unknown.
inline mx::Dtype dtype_of(mlx_dtype dtype) {
  if (static_cast<int>(dtype) < static_cast<int>(MLX_BOOL) ||
      static_cast<int>(dtype) > static_cast<int>(MLX_COMPLEX64)) {
    throw std::invalid_argument("unknown dtype code " + std::to_string(static_cast<int>(dtype)));
  }
  return mlx_dtype_to_cpp(dtype);
}

// A checked shape: no axis is negative, and the number of bytes fits in size_t.
inline mx::Shape shape_of(const int* shape, size_t ndim, size_t itemsize) {
  if (ndim > MLXRS_MAX_NDIM) {
    throw std::invalid_argument(
        "an array has at most " + std::to_string(MLXRS_MAX_NDIM) + " axes, given " + std::to_string(ndim));
  }
  mx::Shape result;
  size_t bytes = itemsize;
  bool overflow = false;
  for (size_t i = 0; i < ndim; i++) {
    if (shape[i] < 0) {
      throw std::invalid_argument(
          "axis " + std::to_string(i) + " of a shape is negative: " + std::to_string(shape[i]));
    }
    overflow |= __builtin_mul_overflow(bytes, static_cast<size_t>(shape[i]), &bytes);
    result.push_back(shape[i]);
  }
  if (overflow) {
    throw std::invalid_argument("a shape has more elements than memory has bytes");
  }
  return result;
}

} // namespace mlxrs
