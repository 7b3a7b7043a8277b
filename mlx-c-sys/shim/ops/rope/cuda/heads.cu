#include "cuda/args.h"
#include "cuda/device.cuh"
#include "ops/store/cuda/slots.cuh"

namespace mlxrs::cuda {

constexpr int heads_warps = 4, largest_dim = 512;

// A warp takes one head of one token: first the heads of the projection, then those of the values.
template <class T>
__device__ void heads(const HeadsArgs& a) {
  wait_for_previous();
  __shared__ float all[heads_warps][largest_dim];
  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  float* v = all[warp];
  uint32_t per_token = a.heads + (a.slots > 0 ? a.value_heads : 0);
  uint32_t task = blockIdx.x * heads_warps + warp, tokens = a.tokens;
  if (task >= a.rows * tokens * per_token) {
    return;
  }
  int head = task % per_token, token = task / per_token % tokens, row = task / per_token / tokens;
  int slot = a.slots > 0 ? slot_of(a, row, token) : token, length = a.slots > 0 ? a.slots : a.tokens;
  if (slot < 0) {
    return;
  }
  if (head >= a.heads) {
    head -= a.heads;
    const T* x = static_cast<const T*>(a.values.at) + row * a.values.row + head * a.values.head + token * a.values.token;
    T* y = static_cast<T*>(a.value_buffer) + ((static_cast<int64_t>(row) * a.value_heads + head) * length + slot) * a.value_dim;
    for (int i = lane; i < a.value_dim; i += warp_size) {
      y[i] = x[i];
    }
    return;
  }
  const T* x = static_cast<const T*>(a.x) + (static_cast<int64_t>(row * a.tokens + token) * a.heads + head) * a.dim;
  T* y = static_cast<T*>(a.y) + ((static_cast<int64_t>(row) * a.heads + head) * length + slot) * a.dim;
  float sum = 0;
  for (int i = lane; i < a.dim; i += warp_size) {
    v[i] = wide(x[i]);
    sum += v[i] * v[i];
  }
  if (a.weight != nullptr) {
    float r = rsqrtf(warp_sum(sum) / static_cast<float>(a.dim) + a.eps);
    for (int i = lane; i < a.dim; i += warp_size) {
      v[i] = rounded<T>(v[i] * r * wide(static_cast<const T*>(a.weight)[i]));
    }
  }
  __syncwarp();
  int half = a.dims / 2;
  float position = static_cast<float>(token) + static_cast<float>(a.offsets[row * a.offset_step]);
  for (int i = lane; i < half; i += warp_size) {
    float sine, cosine;
    sincosf(position * (1.0f / a.periods[i]), &sine, &cosine);
    y[i] = narrow<T>(v[i] * cosine - v[i + half] * sine);
    y[i + half] = narrow<T>(v[i] * sine + v[i + half] * cosine);
  }
  for (int i = a.dims + lane; i < a.dim; i += warp_size) {
    y[i] = narrow<T>(v[i]);
  }
}

// Keys that are heads already, and values.
template <class T>
__device__ void store(const HeadsArgs& a, const Heads& keys) {
  wait_for_previous();
  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  uint32_t per_token = a.heads + a.value_heads;
  uint32_t task = blockIdx.x * heads_warps + warp, tokens = a.tokens;
  if (task >= a.rows * tokens * per_token) {
    return;
  }
  int head = task % per_token, token = task / per_token % tokens, row = task / per_token / tokens;
  int slot = slot_of(a, row, token);
  if (slot < 0) {
    return;
  }
  bool is_key = head < a.heads;
  head -= is_key ? 0 : a.heads;
  const Heads& from = is_key ? keys : a.values;
  int count = is_key ? a.heads : a.value_heads, dim = is_key ? a.dim : a.value_dim;
  const T* x = static_cast<const T*>(from.at) + row * from.row + head * from.head + token * from.token;
  T* y = static_cast<T*>(is_key ? a.y : a.value_buffer) + ((static_cast<int64_t>(row) * count + head) * a.slots + slot) * dim;
  for (int i = lane; i < dim; i += warp_size) {
    y[i] = x[i];
  }
}

} // namespace mlxrs::cuda

#define MLXRS_HEADS(T)                                                                                             \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::heads_warps * mlxrs::cuda::warp_size)                 \
      heads_##T(const __grid_constant__ mlxrs::cuda::HeadsArgs a) {                                                \
    mlxrs::cuda::heads<mlxrs::cuda::T>(a);                                                                         \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::heads_warps * mlxrs::cuda::warp_size)                 \
      store_##T(const __grid_constant__ mlxrs::cuda::HeadsArgs a, const __grid_constant__ mlxrs::cuda::Heads keys) { \
    mlxrs::cuda::store<mlxrs::cuda::T>(a, keys);                                                                   \
  }
MLXRS_HEADS(bf16)
MLXRS_HEADS(f16)
