// Prints the embedded kernels: their names, and whether each is a fat binary.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "cuda/embedded.h"

int main() {
  for (size_t i = 0; i < mlxrs::cuda::embedded_count; i++) {
    const auto& one = mlxrs::cuda::embedded[i];
    uint32_t magic = 0;
    std::memcpy(&magic, one.begin, sizeof(magic));
    bool is_aligned = reinterpret_cast<uintptr_t>(one.begin) % 16 == 0;
    std::printf("%s %s %s\n", one.name, magic == 0xba55ed50 ? "fat" : "other", is_aligned && one.size > 100 ? "whole" : "broken");
  }
}
