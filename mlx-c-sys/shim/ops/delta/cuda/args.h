// Arguments of the CUDA kernels of linear attention and causal convolutions, shared by host and device.
#pragma once

#include <stdint.h>

namespace mlxrs::cuda {

// The inputs of mlxrs_gated_delta and mlxrs_scan, all dense. `before` and `after` are the state [rows, heads,
// value_dim, dim].
struct DeltaArgs {
  const void* x; // [rows, tokens, width]
  const void* a; // [rows, tokens, heads], or [rows, tokens, heads dim] with a decay for each channel
  const void* b; // [rows, tokens, heads]; for the scan F32 [heads]
  const float *rate, *bias, *before;
  const int32_t* widths;
  void* y; // [rows, tokens, heads value_dim]
  float* after;
  int tokens, width, heads, key_heads, dim, value_dim;
  float least, most;
  bool whole; // queries, keys and decays can be loaded in 16 bytes: aligned, and sizes are multiples of 8
};

struct ConvArgs {
  const void* x;    // [rows, taps - 1 + tokens, channels]
  const void* taps; // [taps, channels]
  const void* bias; // [channels], or null
  void* y;          // [rows, tokens, channels]
  int rows, tokens, channels, count;
  bool silu;
};

// The largest size of a key.
constexpr int most_delta_dim = 256;
// Rows of the state that a block updates.
constexpr int delta_block_rows = 32;

} // namespace mlxrs::cuda
