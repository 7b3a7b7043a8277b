// Causal depthwise convolutions: y[b, t, c] = sum over j of x[b, t + j, c] taps[j, c] + bias[c], then SiLU if `silu`. T
// is bf16 or f16; sums are in F32, from the first tap to the last.
//
// Grid: each thread computes elements (one channel of one token) in a grid-stride loop; adjacent threads have adjacent
// channels.
// Bound: memory bandwidth. The same x is read for several tokens, from L1 and L2.
#include "cuda/device.cuh"
#include "ops/delta/cuda/args.h"

namespace mlxrs::cuda {

template <class T>
__device__ void conv(const ConvArgs& a) {
  wait_for_previous();
  int64_t all = static_cast<int64_t>(a.rows) * a.tokens * a.channels, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += step) {
    int channel = static_cast<int>(i % a.channels);
    int64_t token = i / a.channels, row = token / a.tokens;
    // A row of x has `count - 1` more tokens than a row of y.
    const T* x = static_cast<const T*>(a.x) + (token + row * (a.count - 1)) * a.channels + channel;
    const T* taps = static_cast<const T*>(a.taps) + channel;
    float sum = wide(x[0]) * wide(taps[0]);
    for (int j = 1; j < a.count; j++) {
      sum = fmaf(wide(x[static_cast<int64_t>(j) * a.channels]), wide(taps[j * a.channels]), sum);
    }
    if (a.bias != nullptr) {
      sum += wide(static_cast<const T*>(a.bias)[channel]);
    }
    static_cast<T*>(a.y)[i] = narrow<T>(a.silu ? sum / (1.0f + expf(-sum)) : sum);
  }
}

} // namespace mlxrs::cuda

extern "C" __global__ void conv_bf16(const __grid_constant__ mlxrs::cuda::ConvArgs a) {
  mlxrs::cuda::conv<mlxrs::cuda::bf16>(a);
}
extern "C" __global__ void conv_f16(const __grid_constant__ mlxrs::cuda::ConvArgs a) {
  mlxrs::cuda::conv<mlxrs::cuda::f16>(a);
}
