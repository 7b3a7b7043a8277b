// Elementwise kernels: gates y = gate(x) up and their gradients, soft caps y = cap tanh(x / cap), in F32 for T of bf16, f16 or float;
// copies of strided arrays; copies of several arrays; zeros. All are bound by memory bandwidth.
#include <initializer_list>

#include "cuda/args.h"
#include "ops/linear/cuda/product.cuh"

namespace mlxrs::cuda {

// Adjacent elements that are loaded and stored together.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T v[N];

  __device__ static Vector load(const void* from, int64_t i) {
    return static_cast<const Vector*>(from)[i];
  }
  __device__ void store(void* to, int64_t i) const {
    static_cast<Vector*>(to)[i] = *this;
  }
};

// Calls body(N, i) for all vectors of N of the n elements; N is 16 bytes if all arrays begin at multiples of 16 bytes.
template <class T, class Body>
__device__ inline void each_vector(int64_t n, std::initializer_list<const void*> arrays, const Body& body) {
  constexpr int most = 16 / sizeof(T);
  uintptr_t all = 0;
  for (const void* at : arrays) {
    all |= reinterpret_cast<uintptr_t>(at);
  }
  int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t vectors = all % 16 == 0 ? n / most : 0;
  for (int64_t i = first; i < vectors; i += step) {
    body.template operator()<most>(i);
  }
  for (int64_t i = vectors * most + first; i < n; i += step) {
    body.template operator()<1>(i);
  }
}

template <class T>
__device__ void gated(const GatedArgs& a) {
  wait_for_previous();
  each_vector<T>(a.n, {a.gate, a.up, a.y}, [&]<int N>(int64_t i) {
    auto gate = Vector<T, N>::load(a.gate, i), up = a.up != nullptr ? Vector<T, N>::load(a.up, i) : gate;
    Vector<T, N> y;
#pragma unroll
    for (int e = 0; e < N; e++) {
      float x = wide(gate.v[e]);
      y.v[e] = narrow<T>(a.kind == 2 ? a.cap * tanhf(x / a.cap) : rounded<T>(gate_of(a.kind, x)) * wide(up.v[e]));
    }
    y.store(a.y, i);
  });
}

// The derivative of gate_of.
__device__ inline float slope_of(int kind, float x) {
  if (kind == 0) {
    float sigmoid = 1.0f / (1.0f + __expf(-x));
    return sigmoid * (1.0f + x * (1.0f - sigmoid));
  }
  constexpr float root = 0.7978845608028654f, cubic = 0.044715f;
  float t = tanhf(root * (x + cubic * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * root * (1.0f + 3.0f * cubic * x * x);
}

// dgate = dy up gate'(x), dup = dy gate(x)
template <class T>
__device__ void gated_vjp(const GatedVjpArgs& a) {
  wait_for_previous();
  each_vector<T>(a.n, {a.gate, a.up, a.dy, a.dgate, a.dup}, [&]<int N>(int64_t i) {
    auto gate = Vector<T, N>::load(a.gate, i), up = Vector<T, N>::load(a.up, i), dy = Vector<T, N>::load(a.dy, i);
    Vector<T, N> dgate, dup;
#pragma unroll
    for (int e = 0; e < N; e++) {
      float x = wide(gate.v[e]), d = wide(dy.v[e]);
      dgate.v[e] = narrow<T>(d * wide(up.v[e]) * slope_of(a.kind, x));
      dup.v[e] = narrow<T>(d * gate_of(a.kind, x));
    }
    dgate.store(a.dgate, i);
    dup.store(a.dup, i);
  });
}

// Copies the elements of a strided array in row-major order.
template <class T>
__device__ void copy(const CopyArgs& a) {
  wait_for_previous_alone();
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.size; i += step) {
    int64_t at = place_in(i, a.ndim, a.shape, a.strides);
    static_cast<T*>(a.to)[i] = static_cast<const T*>(a.from)[at];
  }
}

} // namespace mlxrs::cuda

extern "C" __global__ void gated_bf16(const __grid_constant__ mlxrs::cuda::GatedArgs a) {
  mlxrs::cuda::gated<mlxrs::cuda::bf16>(a);
}
extern "C" __global__ void gated_f16(const __grid_constant__ mlxrs::cuda::GatedArgs a) {
  mlxrs::cuda::gated<mlxrs::cuda::f16>(a);
}
extern "C" __global__ void gated_f32(const __grid_constant__ mlxrs::cuda::GatedArgs a) {
  mlxrs::cuda::gated<float>(a);
}
extern "C" __global__ void gated_vjp_bf16(const __grid_constant__ mlxrs::cuda::GatedVjpArgs a) {
  mlxrs::cuda::gated_vjp<mlxrs::cuda::bf16>(a);
}
extern "C" __global__ void gated_vjp_f16(const __grid_constant__ mlxrs::cuda::GatedVjpArgs a) {
  mlxrs::cuda::gated_vjp<mlxrs::cuda::f16>(a);
}
extern "C" __global__ void copy_8(const __grid_constant__ mlxrs::cuda::CopyArgs a) {
  mlxrs::cuda::copy<uint8_t>(a);
}
extern "C" __global__ void copy_16(const __grid_constant__ mlxrs::cuda::CopyArgs a) {
  mlxrs::cuda::copy<uint16_t>(a);
}
extern "C" __global__ void copy_32(const __grid_constant__ mlxrs::cuda::CopyArgs a) {
  mlxrs::cuda::copy<uint32_t>(a);
}
// Copies several arrays; each block copies one.
extern "C" __global__ void segments(const __grid_constant__ mlxrs::cuda::SegmentArgs a) {
  mlxrs::cuda::wait_for_previous_alone();
  auto [from, to, bytes] = a.of[blockIdx.x];
  bool words = (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(bytes)) % 4 == 0;
  for (int64_t i = threadIdx.x; words && i < bytes / 4; i += blockDim.x) {
    static_cast<uint32_t*>(to)[i] = static_cast<const uint32_t*>(from)[i];
  }
  for (int64_t i = threadIdx.x; !words && i < bytes; i += blockDim.x) {
    static_cast<char*>(to)[i] = static_cast<const char*>(from)[i];
  }
}
// Writes zeros, 16 bytes at a time.
extern "C" __global__ void zeros(const __grid_constant__ mlxrs::cuda::CopyArgs a) {
  mlxrs::cuda::wait_for_previous_alone();
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.size; i += step) {
    static_cast<uint4*>(a.to)[i] = make_uint4(0, 0, 0, 0);
  }
}
