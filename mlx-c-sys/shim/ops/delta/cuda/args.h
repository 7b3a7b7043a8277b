// Arguments of the CUDA kernels of linear attention and causal convolutions, shared by host and device.
#pragma once

#include <stdint.h>

namespace mlxrs::cuda {

// Ragged rows (mlxrs_ragged): `count` rows of tokens on one axis. `from` and `to` are null without a pool of slots.
struct RaggedArgs {
  const int32_t *starts, *from, *to;
  int count, slots;
  bool each;
};

// The inputs of mlxrs_gated_delta and mlxrs_scan, all dense. `before` and `after` are the state [rows, heads,
// value_dim, dim]. Of ragged rows, there is one axis of tokens, and both are the pool.
struct DeltaArgs {
  const void* x; // [rows, tokens, width]
  const void* a; // [rows, tokens, heads], or [rows, tokens, heads dim] with a decay for each channel
  const void* b; // [rows, tokens, heads]; for the scan F32 [heads]
  const float *rate, *bias, *before;
  const int32_t* widths; // null for ragged rows
  void* y; // [rows, tokens, heads value_dim]
  float* after;
  int tokens, width, heads, key_heads, dim, value_dim;
  float least, most, bound;
  bool whole; // queries, keys and decays can be loaded in 16 bytes: aligned, and sizes are multiples of 8
  RaggedArgs rows;
};

struct ConvArgs {
  const void* x;    // [rows, taps - 1 + tokens, channels]
  const void* taps; // [taps, channels]
  const void* bias; // [channels], or null
  void* y;          // [rows, tokens, channels]
  int rows, tokens, channels, count;
  bool silu;
};
// x and y are [tokens, channels], the pool is [slots, count - 1, channels].
struct RaggedConvArgs {
  const void *x, *taps, *bias;
  void *y, *pool;
  int tokens, channels, count;
  bool silu;
  RaggedArgs rows;
};

// The most taps of a convolution of ragged rows, and the tokens that a thread computes at once.
constexpr int most_ragged_taps = 8, ragged_conv_tokens = 8;

// The largest size of a key.
constexpr int most_delta_dim = 256;
// Rows of the state that a block updates.
constexpr int delta_block_rows = 32;

} // namespace mlxrs::cuda
