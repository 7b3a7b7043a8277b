// Settings of the CPU kernels from the environment.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace mlxrs {

inline std::string setting(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

// Whether our CPU kernels run. MLX_CPU_KERNELS=off selects MLX's own operations and its BLAS.
inline bool kernels_wanted() {
  std::string wanted = setting("MLX_CPU_KERNELS");
  if (!wanted.empty() && wanted != "on" && wanted != "off") {
    throw std::invalid_argument("MLX_CPU_KERNELS must be on or off, given \"" + wanted + "\"");
  }
  return wanted != "off";
}

} // namespace mlxrs
