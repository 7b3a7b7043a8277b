// Elementwise kernels: gates y = gate(x) up and their gradients, soft caps y = cap tanh(x / cap), in F32 for T of bf16, f16 or float;
// copies of strided arrays; copies of several arrays; zeros. All are bound by memory bandwidth.
#include "cuda/args.h"
#include "ops/linear/cuda/product.cuh"

namespace mlxrs::cuda {

template <class T>
__device__ void gated(const GatedArgs& a) {
  wait_for_previous();
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.n; i += step) {
    float x = wide(static_cast<const T*>(a.gate)[i]);
    float y = a.kind == 2 ? a.cap * tanhf(x / a.cap)
                          : rounded<T>(gate_of(a.kind, x)) * wide(static_cast<const T*>(a.up)[i]);
    static_cast<T*>(a.y)[i] = narrow<T>(y);
  }
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
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.n; i += step) {
    float x = wide(static_cast<const T*>(a.gate)[i]), up = wide(static_cast<const T*>(a.up)[i]);
    float dy = wide(static_cast<const T*>(a.dy)[i]);
    static_cast<T*>(a.dgate)[i] = narrow<T>(dy * up * slope_of(a.kind, x));
    static_cast<T*>(a.dup)[i] = narrow<T>(dy * gate_of(a.kind, x));
  }
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
