// The arguments of the kernels of recurrences, as the host fills them and the device reads them.
#pragma once

#include <stdint.h>

namespace mlxrs::cuda {

// The inputs of mlxrs_gated_delta and mlxrs_scan, all dense.
struct DeltaArgs {
  const void* x; // [rows, tokens, width]
  const void* a; // [rows, tokens, heads], of channels [rows, tokens, heads dim]
  const void* b; // [rows, tokens, heads]; of a scan F32 [heads]
  const float *rate, *bias, *before;
  const int32_t* widths;
  void* y; // [rows, tokens, heads value_dim]
  float* after;
  int tokens, width, heads, key_heads, dim, value_dim;
  float least, most;
  bool whole; // queries, keys and decays begin at multiples of 16 bytes, and have whole eights
};

struct ConvArgs {
  const void* x;    // [rows, taps - 1 + tokens, channels]
  const void* taps; // [taps, channels]
  const void* bias; // null: none
  void* y;          // [rows, tokens, channels]
  int rows, tokens, channels, count;
  bool silu;
};

// Elements of a key at most.
constexpr int most_delta_dim = 256;
// Value rows of the state of a block.
constexpr int delta_block_rows = 32;

} // namespace mlxrs::cuda
