// A stand-in for the fmt library, which MLX's CUDA headers include and MLX's wheel does not contain.
#pragma once

// The C++ library's <format>, or compat/format.
#include <format>

namespace fmt {

using std::format;

}  // namespace fmt
