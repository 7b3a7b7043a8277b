// Settings from the environment, for what runs on the CPU.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace mlxrs {

inline std::string setting(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

// MLX_CPU_KERNELS=off takes MLX's own operations, and the BLAS that it brought, in place of ours.
inline bool kernels_wanted() {
  std::string wanted = setting("MLX_CPU_KERNELS");
  if (!wanted.empty() && wanted != "on" && wanted != "off") {
    throw std::invalid_argument("MLX_CPU_KERNELS must be on or off, given \"" + wanted + "\"");
  }
  return wanted != "off";
}

} // namespace mlxrs
