// Arguments of the kernel of token masks, shared by host and device.
#pragma once

#include <stdint.h>

namespace mlxrs::cuda {

struct AllowArgs {
  const void* x;        // [rows, n]
  const uint32_t* bits; // [rows, words]: bit i % 32 of word i / 32 allows token i
  void* y;
  int n, words;
  int64_t all;
};

} // namespace mlxrs::cuda
