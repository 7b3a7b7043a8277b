// What MLX's CUDA headers use of the library fmt, which MLX's wheel lacks.
#pragma once

// The C++ library's, or compat/format.
#include <format>

namespace fmt {

using std::format;

}  // namespace fmt
