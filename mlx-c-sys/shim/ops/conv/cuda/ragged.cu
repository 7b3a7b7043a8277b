// Causal depthwise convolutions of ragged rows, whose last inputs are in slots (see mlxrs_fast_ragged_conv). T is bf16 or
// f16; sums are in F32, from the first tap to the last, as in conv.cu.
//
// Grid: blockIdx.x is a group of channels, one for each thread; blockIdx.y the row, the last ones first, because prompts
// are the last rows of a step, and one more for tokens of no row; blockIdx.z the piece of eight tokens of the row, which
// blocks take in turns. Only the first piece reads the row's slot, and its block writes all slots of the row when it has
// read, so slots may be updated in place.
// Bound: memory bandwidth. A thread loads 15 inputs for eight tokens.
#include "cuda/device.cuh"
#include "ops/delta/cuda/rows.cuh"

namespace mlxrs::cuda {

constexpr int conv_threads = 256;

template <class T>
__device__ void ragged_conv(const RaggedConvArgs& a) {
  constexpr int taps = most_ragged_taps, most = taps - 1, own = ragged_conv_tokens;
  // The inputs before the row: those of tap `taps - 1` less 7, 6, .. places. A thread uses its own column only.
  __shared__ T old[most][conv_threads];
  wait_for_previous();
  int channel = blockIdx.x * conv_threads + threadIdx.x, row = gridDim.y - 1 - blockIdx.y, len = a.count - 1;
  if (channel >= a.channels) {
    return;
  }
  const T* x = static_cast<const T*>(a.x) + channel;
  T *y = static_cast<T*>(a.y) + channel, *pool = static_cast<T*>(a.pool) + channel;
  int64_t n = a.channels;
  int begin = row_start(a.rows, row, a.tokens);
  if (row == a.rows.count) {
    for (int64_t t = begin + static_cast<int>(blockIdx.z); t < a.tokens; t += gridDim.z) {
      y[t * n] = narrow<T>(0.0f);
    }
    return;
  }
  int real = row_start(a.rows, row + 1, a.tokens) - begin, slot = slot_before(a.rows, row);
  if (static_cast<int>(blockIdx.z) * own >= real) {
    return;
  }
  x += begin * n;
  y += begin * n;
  // The taps end at the last element of `weights`, so that indices into registers are constants.
  int skipped = taps - a.count;
  float weights[taps];
#pragma unroll
  for (int j = 0; j < taps; j++) {
    weights[j] = j < skipped ? 0.0f : wide(static_cast<const T*>(a.taps)[(j - skipped) * n + channel]);
  }
  float bias = a.bias != nullptr ? wide(static_cast<const T*>(a.bias)[channel]) : 0.0f;
  if (blockIdx.z == 0) {
#pragma unroll
    for (int i = 0; i < most; i++) {
      bool is_there = i >= skipped && slot >= 0;
      old[i][threadIdx.x] = is_there ? pool[(static_cast<int64_t>(slot) * len + i - skipped) * n] : narrow<T>(0.0f);
    }
  }
  for (int first = blockIdx.z * own; first < real; first += gridDim.z * own) {
    // The inputs from place first - 7 on.
    T inputs[most + own];
#pragma unroll
    for (int i = 0; i < most + own; i++) {
      int place = first + i - most;
      inputs[i] = i < skipped || place >= real ? narrow<T>(0.0f) : place >= 0 ? x[place * n] : old[i % most][threadIdx.x];
    }
#pragma unroll
    for (int t = 0; t < own; t++) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < taps; j++) {
        if (j >= skipped) {
          float input = wide(inputs[t + j]);
          sum = j == skipped ? input * weights[j] : fmaf(input, weights[j], sum);
        }
      }
      if (a.bias != nullptr) {
        sum += bias;
      }
      if (first + t < real) {
        y[(first + t) * n] = narrow<T>(a.silu ? sum / (1.0f + expf(-sum)) : sum);
      }
    }
  }
  if (blockIdx.z > 0 || a.pool == nullptr) {
    return;
  }
  for (int t = a.rows.each ? 0 : real - 1; t < real; t++) {
    int to = slot_after(a.rows, row, begin + t, t + 1 == real);
    for (int i = 0; to >= 0 && i < len; i++) {
      int place = t + 1 - len + i;
      pool[(static_cast<int64_t>(to) * len + i) * n] = place >= 0 ? x[place * n] : old[most + place][threadIdx.x];
    }
  }
}

} // namespace mlxrs::cuda

extern "C" __global__ void __launch_bounds__(mlxrs::cuda::conv_threads)
    ragged_conv_bf16(const __grid_constant__ mlxrs::cuda::RaggedConvArgs a) {
  mlxrs::cuda::ragged_conv<mlxrs::cuda::bf16>(a);
}
extern "C" __global__ void __launch_bounds__(mlxrs::cuda::conv_threads)
    ragged_conv_f16(const __grid_constant__ mlxrs::cuda::RaggedConvArgs a) {
  mlxrs::cuda::ragged_conv<mlxrs::cuda::f16>(a);
}
