// Device code that the kernels share: conversions of 16-bit floats, sums over threads, tensor core products, and
// programmatic dependent launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "cuda/args.h"

namespace mlxrs::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

template <class T>
constexpr bool is_bf16 = false;
template <>
constexpr bool is_bf16<bf16> = true;

constexpr int warp_size = 32;

// is_roomy (args.h) of the architecture that is compiled for.
#ifdef __CUDA_ARCH__
constexpr bool has_room = is_roomy(__CUDA_ARCH__ / 100);
#else
constexpr bool has_room = true;
#endif

// Our kernels are launched while the previous kernel still runs (cuda/launch.h). A kernel calls this before it reads
// what other kernels write, and before it writes. It waits until all memory of the previous kernel is written, and then
// allows the next kernel to start.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// For a kernel that does not depend on the previous kernel (Launch::is_independent) and runs at the same time. It does
// not wait, and allows the next kernel to start. Before it ends it must call wait_for_previous_alone, so that it ends
// after the previous kernel.
__device__ inline void start_beside_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits like wait_for_previous, but does not allow the next kernel to start early. For kernels whose results may be
// weights, because products load weights before they wait.
__device__ inline void wait_for_previous_alone() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline float wide(float x) {
  return x;
}
__device__ inline float wide(bf16 x) {
  return __bfloat162float(x);
}
__device__ inline float wide(f16 x) {
  return __half2float(x);
}
template <class T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 narrow<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline f16 narrow<f16>(float x) {
  return __float2half_rn(x);
}
// x rounded to T, as if it were written to memory and read again.
template <class T>
__device__ inline float rounded(float x) {
  return wide(narrow<T>(x));
}

// Two 16-bit floats in a word, the first in the low half.
template <class T>
__device__ inline uint32_t pair(float low, float high);
template <>
__device__ inline uint32_t pair<bf16>(float low, float high) {
  auto two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<uint32_t*>(&two);
}
template <>
__device__ inline uint32_t pair<f16>(float low, float high) {
  auto two = __floats2half2_rn(low, high);
  return *reinterpret_cast<uint32_t*>(&two);
}

// c += a b on tensor cores, for a [16, 16] and b [16, 8] of T, with c in F32. Thread 4 g + t of the warp has these
// elements:
// of a, (g, 2 t), (g + 8, 2 t), (g, 2 t + 8) and (g + 8, 2 t + 8), each with the next column;
// of b, (2 t, g) and (2 t + 8, g), each with the next row;
// of c, (g, 2 t) and (g + 8, 2 t), each with the next column.
template <class T>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ inline void multiply<bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply<f16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The sum of x over the threads of a warp, returned to every thread. T is float or double.
template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int step = warp_size / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(~0u, x, step);
  }
  return x;
}

// The sum of x over the threads of a block of `Warps` warps, returned to every thread. The order of the sum depends only on
// the number of threads. `parts` is shared memory that is used for this sum only, so that one barrier is enough.
template <int Warps>
__device__ inline float block_sum(float x, float (&parts)[Warps]) {
  x = warp_sum(x);
  if (threadIdx.x % warp_size == 0) {
    parts[threadIdx.x / warp_size] = x;
  }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Warps; i++) {
    sum += parts[i];
  }
  return sum;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = warp_size / 2; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  }
  return x;
}

// The offset of element i (in row-major order) of an array with this shape and these strides.
__device__ inline int64_t place_in(int64_t i, int ndim, const int* shape, const int64_t* strides) {
  int64_t at = 0;
  for (int d = ndim - 1; d >= 0; d--) {
    at += i % shape[d] * strides[d];
    i /= shape[d];
  }
  return at;
}

// Loads 16 bytes without caching them in L1, because no other block reads them soon.
__device__ inline uint4 load_once(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}
__device__ inline uint32_t load_once(const uint32_t* at) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}

// Starts an asynchronous copy of 16 bytes to shared memory.
template <class T>
__device__ inline void copy_16_bytes(T* to, const T* from) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from));
}

// Starts to load memory into L2, without waiting for it. Bytes before the first and after the last multiple of 16 are
// left out. Before Hopper it does nothing: kernels do not start early there, so there is nothing to load ahead of.
__device__ inline void prefetch(const void* from, int64_t bytes) {
#if __CUDA_ARCH__ >= 900
  auto begin = (reinterpret_cast<uintptr_t>(from) + 15) / 16 * 16, end = (reinterpret_cast<uintptr_t>(from) + bytes) / 16 * 16;
  if (begin < end) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(begin), "r"(static_cast<uint32_t>(end - begin)) : "memory");
  }
#endif
}

} // namespace mlxrs::cuda
