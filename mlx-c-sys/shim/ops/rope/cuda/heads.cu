// Projections that become heads: norm, rotation, and optionally the write to the KV cache, for T of bf16 or f16,
// computed in F32. `heads` computes y = rope(rms_norm(x, weight)) of each head of x [B, L, H D], and copies values to
// the KV cache; `both_heads` does that for queries and keys; `store` copies keys and values to the KV cache. A warp
// handles one head of one token, or several heads of a token, whose angles it computes once; a block has four warps.
// Bound: latency in decode, memory bandwidth in prompts.
#include "cuda/args.h"
#include "cuda/device.cuh"
#include "ops/store/cuda/slots.cuh"

namespace mlxrs::cuda {

constexpr int heads_warps = 4, largest_dim = 512;

// Loads an element that another kernel has written, bypassing L1: a kernel that runs beside the previous one could find
// an old value in L1.
template <class T>
__device__ inline T fresh(const T* at) {
  static_assert(sizeof(T) == sizeof(unsigned short));
  unsigned short bits = __ldcg(reinterpret_cast<const unsigned short*>(at));
  return *reinterpret_cast<const T*>(&bits);
}

// `count` heads of 32 E elements in which all elements are rotated. Heads are adjacent in x and `y_step` elements apart in
// y. A lane has E adjacent elements of a head, and the lane 16 away has the elements that they are paired with.
template <class T, int E>
__device__ inline void rotate_heads(const HeadsArgs& a, const T* x, T* y, int count, int64_t y_step, float position) {
  struct alignas(2 * E) Words {
    uint32_t v[E / 2];
  };
  int lane = threadIdx.x % warp_size;
  bool is_low = lane < warp_size / 2;
  Words given, weights{};
  if (a.weight != nullptr) {
    weights = static_cast<const Words*>(a.weight)[lane];
  }
  auto load = [&](const T* x) {
    // Bypasses L1, as `fresh` does.
    if constexpr (E == 8) {
      *reinterpret_cast<uint4*>(&given) = __ldcg(reinterpret_cast<const uint4*>(x) + lane);
    } else if constexpr (E == 4) {
      *reinterpret_cast<uint2*>(&given) = __ldcg(reinterpret_cast<const uint2*>(x) + lane);
    } else {
      given.v[0] = __ldcg(reinterpret_cast<const uint32_t*>(x) + lane);
    }
  };
  if (!a.early) {
    load(x);
  }
  // Each lane of a pair of lanes computes half of the pair's angles.
  float sines[E], cosines[E];
#pragma unroll
  for (int e = 0; e < E / 2; e++) {
    int i = E * (lane % (warp_size / 2)) + e + (is_low ? 0 : E / 2);
    float sine, cosine;
    sincosf(position * (1.0f / a.periods[i]), &sine, &cosine);
    float other_sine = __shfl_xor_sync(~0u, sine, warp_size / 2), other_cosine = __shfl_xor_sync(~0u, cosine, warp_size / 2);
    sines[e] = is_low ? sine : other_sine, sines[e + E / 2] = is_low ? other_sine : sine;
    cosines[e] = is_low ? cosine : other_cosine, cosines[e + E / 2] = is_low ? other_cosine : cosine;
  }
  if (a.early) {
    wait_for_previous();
    load(x);
  }
  const T *from = reinterpret_cast<const T*>(given.v), *weight = reinterpret_cast<const T*>(weights.v);
  for (int head = 0; head < count; head++) {
    float v[E], sum = 0;
#pragma unroll
    for (int e = 0; e < E; e++) {
      v[e] = wide(from[e]);
      sum += v[e] * v[e];
    }
    if (head + 1 < count) {
      load(x + (head + 1) * E * warp_size);
    }
    if (a.weight != nullptr) {
      float r = rsqrtf(warp_sum(sum) / static_cast<float>(a.dim) + a.eps);
#pragma unroll
      for (int e = 0; e < E; e++) {
        v[e] = rounded<T>(v[e] * r * wide(weight[e]));
      }
    }
    Words result;
#pragma unroll
    for (int e = 0; e < E; e += 2) {
      float two[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float other = __shfl_xor_sync(~0u, v[e + i], warp_size / 2), sine = is_low ? -sines[e + i] : sines[e + i];
        two[i] = v[e + i] * cosines[e + i] + other * sine;
      }
      result.v[e / 2] = pair<T>(two[0], two[1]);
    }
    reinterpret_cast<Words*>(y + head * y_step)[lane] = result;
  }
}

// A warp computes `heads_of_warp` heads of one token, or copies one of its values. Tasks of heads come before those of
// values. With `a.early` it waits for the previous kernel when it needs x.
template <class T>
__device__ void heads(const HeadsArgs& a, uint32_t block) {
  __shared__ float all[heads_warps][largest_dim];
  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  float* v = all[warp];
  int of_heads = a.heads / a.heads_of_warp;
  uint32_t per_token = of_heads + (a.slots > 0 ? a.value_heads : 0);
  uint32_t task = block * heads_warps + warp, tokens = a.tokens;
  auto wait = [&] {
    if (a.early) {
      wait_for_previous();
    }
  };
  if (task >= a.rows * tokens * per_token) {
    return wait();
  }
  int head = task % per_token, token = task / per_token % tokens, row = task / per_token / tokens;
  int length = a.slots > 0 ? a.slots : a.tokens;
  Place to = a.slots > 0 ? place_of(a, row, token) : Place{row, token};
  if (to.slot < 0) {
    return wait();
  }
  if (head >= of_heads) {
    wait();
    head -= of_heads;
    const T* x = static_cast<const T*>(a.values.at) + row * a.values.row + head * a.values.head + token * a.values.token;
    T* y = static_cast<T*>(a.value_buffer) + ((static_cast<int64_t>(to.block) * a.value_heads + head) * length + to.slot) * a.value_dim;
    for (int i = lane; i < a.value_dim; i += warp_size) {
      y[i] = fresh(x + i);
    }
    return;
  }
  head *= a.heads_of_warp;
  int count = a.heads_of_warp;
  const T* x = static_cast<const T*>(a.x) + (static_cast<int64_t>(row * a.tokens + token) * a.heads + head) * a.dim;
  T* y = static_cast<T*>(a.y) + ((static_cast<int64_t>(to.block) * a.heads + head) * length + to.slot) * a.dim;
  int64_t y_step = static_cast<int64_t>(length) * a.dim;
  float position = a.has_positions ? static_cast<float>(__ldcg(a.offsets + row * a.tokens + token))
                                   : static_cast<float>(token) + static_cast<float>(__ldcg(a.offsets + row * a.offset_step));
  if (a.dims == a.dim && a.is_aligned) {
    if (a.dim == 256) {
      return rotate_heads<T, 8>(a, x, y, count, y_step, position);
    } else if (a.dim == 128) {
      return rotate_heads<T, 4>(a, x, y, count, y_step, position);
    } else if (a.dim == 64) {
      return rotate_heads<T, 2>(a, x, y, count, y_step, position);
    }
  }
  wait();
  for (; count > 0; count--, x += a.dim, y += y_step) {
    float sum = 0;
#pragma unroll 8
    for (int i = lane; i < a.dim; i += warp_size) {
      v[i] = wide(fresh(x + i));
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
    for (int i = lane; i < half; i += warp_size) {
      float sine, cosine;
      sincosf(position * (1.0f / a.periods[i]), &sine, &cosine);
      y[i] = narrow<T>(v[i] * cosine - v[i + half] * sine);
      y[i + half] = narrow<T>(v[i] * sine + v[i + half] * cosine);
    }
    for (int i = a.dims + lane; i < a.dim; i += warp_size) {
      y[i] = narrow<T>(v[i]);
    }
    // The next head uses the same shared memory.
    __syncwarp();
  }
}

// Copies keys that are heads already, and values, to the KV cache.
template <class T>
__device__ void store(const HeadsArgs& a, const Heads& keys) {
  wait_for_previous();
  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  auto v = vector_of<T>(a, keys, blockIdx.x * heads_warps + warp);
  if (v.x == nullptr) {
    return;
  }
  T* y = static_cast<T*>(v.is_key ? a.y : a.value_buffer) + v.place * v.dim;
  for (int i = lane; i < v.dim; i += warp_size) {
    y[i] = v.x[i];
  }
}

} // namespace mlxrs::cuda

#define MLXRS_HEADS(T)                                                                                             \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::heads_warps * mlxrs::cuda::warp_size)                 \
      heads_##T(const __grid_constant__ mlxrs::cuda::HeadsArgs a) {                                                \
    if (a.beside) {                                                                                                \
      mlxrs::cuda::start_beside_previous();                                                                        \
    } else if (!a.early) {                                                                                         \
      mlxrs::cuda::wait_for_previous();                                                                            \
    }                                                                                                              \
    mlxrs::cuda::heads<mlxrs::cuda::T>(a, blockIdx.x);                                                             \
    if (a.beside) {                                                                                                \
      mlxrs::cuda::wait_for_previous_alone();                                                                      \
    }                                                                                                              \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::heads_warps * mlxrs::cuda::warp_size)                  \
      both_heads_##T(const __grid_constant__ mlxrs::cuda::HeadsArgs queries,                                       \
                     const __grid_constant__ mlxrs::cuda::HeadsArgs keys, unsigned blocks_of_queries) {            \
    bool is_query = blockIdx.x < blocks_of_queries;                                                                \
    const mlxrs::cuda::HeadsArgs& a = is_query ? queries : keys;                                                   \
    if (!a.early) {                                                                                                \
      mlxrs::cuda::wait_for_previous();                                                                            \
    }                                                                                                              \
    mlxrs::cuda::heads<mlxrs::cuda::T>(a, blockIdx.x - (is_query ? 0 : blocks_of_queries));                        \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::heads_warps * mlxrs::cuda::warp_size)                 \
      store_##T(const __grid_constant__ mlxrs::cuda::HeadsArgs a, const __grid_constant__ mlxrs::cuda::Heads keys) { \
    mlxrs::cuda::store<mlxrs::cuda::T>(a, keys);                                                                   \
  }
MLXRS_HEADS(bf16)
MLXRS_HEADS(f16)
