// Packs new keys and values, and writes them into the slots of a quantised KV cache.
//
// Format: codes, then the scale and the bias of each group, the same bits as `pack` of ops/store/cpu/packed_row.h.
// Grid: a warp packs one vector (a key or value of one head and token); a block has four warps.
// Bound: latency; a step writes a few kilobytes.
#include "cuda/device.cuh"
#include "ops/store/cuda/pack.h"
#include "ops/store/cuda/slots.cuh"

namespace mlxrs::cuda {

constexpr int pack_warps = 4;

// Packs one vector with the arithmetic of MLX's quantize: zero has an exact code, and so does that end of the group's
// range that is farther from zero. `codes` is shared memory for `dim` codes.
template <class T>
__device__ void pack(const T* x, int dim, const PackArgs& how, uint32_t* y, uint8_t* codes) {
  int lane = threadIdx.x % warp_size;
  T* factors = reinterpret_cast<T*>(y + dim * how.bits / 32);
  float highest = how.bits == 8 ? 255.0f : 15.0f;
  for (int first = 0; first < dim; first += how.group) {
    float low = INFINITY, high = -INFINITY;
    for (int i = first + lane; i < first + how.group; i += warp_size) {
      low = fminf(low, wide(x[i])), high = fmaxf(high, wide(x[i]));
    }
    low = -warp_max(-low), high = warp_max(high);
    bool is_low = fabsf(low) > fabsf(high);
    float scale = fmaxf((high - low) / highest, 1e-7f), edge = is_low ? low : high, bias = 0;
    scale = is_low ? scale : -scale;
    if (float steps = rintf(edge / scale); steps != 0) {
      scale = edge / steps;
      bias = edge;
    }
    if (lane == 0) {
      factors[first / how.group * 2] = narrow<T>(scale);
      factors[first / how.group * 2 + 1] = narrow<T>(bias);
    }
    for (int i = first + lane; i < first + how.group; i += warp_size) {
      codes[i] = static_cast<uint8_t>(fminf(fmaxf(rintf((wide(x[i]) - bias) / scale), 0.0f), highest));
    }
  }
  __syncwarp();
  int of_word = 32 / how.bits;
  for (int i = lane; i < dim / of_word; i += warp_size) {
    uint32_t word = 0;
    for (int j = 0; j < of_word; j++) {
      word |= static_cast<uint32_t>(codes[i * of_word + j]) << (j * how.bits);
    }
    y[i] = word;
  }
}

template <class T>
__device__ void store_packed(const HeadsArgs& a, const Heads& keys, const PackArgs& how) {
  wait_for_previous();
  __shared__ uint8_t codes[pack_warps][most_packed];
  int warp = threadIdx.x / warp_size;
  auto v = vector_of<T>(a, keys, blockIdx.x * pack_warps + warp);
  if (v.x == nullptr) {
    return;
  }
  int words = v.dim * how.bits / 32 + v.dim / how.group;
  auto* y = static_cast<uint32_t*>(v.is_key ? a.y : a.value_buffer) + v.place * words;
  pack(v.x, v.dim, how, y, codes[warp]);
}

} // namespace mlxrs::cuda

#define MLXRS_STORE_PACKED(T)                                                                                        \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::pack_warps * mlxrs::cuda::warp_size) store_packed_##T(   \
      const __grid_constant__ mlxrs::cuda::HeadsArgs a, const __grid_constant__ mlxrs::cuda::Heads keys,             \
      const __grid_constant__ mlxrs::cuda::PackArgs how) {                                                           \
    mlxrs::cuda::store_packed<mlxrs::cuda::T>(a, keys, how);                                                         \
  }
MLXRS_STORE_PACKED(bf16)
MLXRS_STORE_PACKED(f16)
