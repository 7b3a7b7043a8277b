// How keys and values are packed, for the host and the device.
#pragma once

namespace mlxrs::cuda {

struct PackArgs {
  int bits, group; // 4 or 8; 32, 64 or 128
};

// Elements of a vector at most.
constexpr int most_packed = 512;

} // namespace mlxrs::cuda
