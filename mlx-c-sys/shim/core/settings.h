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

// Whether a switch is on. A switch that is not set is on. Throws for a text other than "on" and "off".
inline bool is_on(const char* name) {
  std::string text = setting(name);
  if (!text.empty() && text != "on" && text != "off") {
    throw std::invalid_argument(std::string(name) + " must be on or off, given \"" + text + "\"");
  }
  return text != "off";
}

// Whether our CPU kernels run. MLX_CPU_KERNELS=off selects MLX's own operations and its BLAS.
inline bool kernels_wanted() {
  return is_on("MLX_CPU_KERNELS");
}

} // namespace mlxrs
