// The compiled CUDA kernels that are part of libmlxc (see mlx-c-sys/build/kernels.rs).
#pragma once

#include <cstddef>

namespace mlxrs::cuda {

// The kernels of one file, ops/<op>/cuda/<stem>.cu.
struct Embedded {
  // "<op>/<stem>"
  const char* name;
  // A fat binary for cuModuleLoadData: machine code for several architectures, and PTX.
  const unsigned char* begin;
  size_t size;
};

extern const Embedded embedded[];
extern const size_t embedded_count;

}  // namespace mlxrs::cuda
