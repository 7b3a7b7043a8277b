// The format of packed vectors in CUDA kernels, shared by host and device.
#pragma once

namespace mlxrs::cuda {

struct PackArgs {
  int bits, group; // bits: 4 or 8; group: 32, 64 or 128
};

// The most elements of a vector.
constexpr int most_packed = 512;

} // namespace mlxrs::cuda
