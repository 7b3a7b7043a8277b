// Finds functions of libmlx that libmlxc replaces. libmlx calls them through its symbol table, where the definitions of
// libmlxc come first.
#pragma once

#ifdef __linux__

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace mlxrs {

// MLX's function with a mangled name: the next definition after the one in this library. Each file has its own copy of
// this template, because a copy in another library would search after that library.
template <typename Function>
static Function* of_mlx(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    throw std::runtime_error(std::string("libmlx has no ") + name);
  }
  return reinterpret_cast<Function*>(found);
}

// Whether libmlx is the CPU library. The other build of libmlx on Linux is the CUDA library, which
// keeps its own allocator.
bool is_cpu_library();

} // namespace mlxrs

#endif
