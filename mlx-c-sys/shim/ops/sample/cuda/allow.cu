// y = x where the row's bit mask allows the token, else minus infinity. NaN and plus infinity stay, so that later
// checks find them.
//
// Grid: one thread for each element, in a grid-stride loop. Bound: memory bandwidth.
#include "cuda/device.cuh"
#include "ops/sample/cuda/allow.h"

namespace mlxrs::cuda {

template <class T>
__device__ void allow(const AllowArgs& a) {
  wait_for_previous();
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.all; i += step) {
    int64_t row = i / a.n;
    int id = static_cast<int>(i % a.n);
    T x = static_cast<const T*>(a.x)[i];
    bool stays = (a.bits[row * a.words + id / 32] >> (id % 32) & 1) != 0 || !(wide(x) < INFINITY);
    static_cast<T*>(a.y)[i] = stays ? x : narrow<T>(-INFINITY);
  }
}

} // namespace mlxrs::cuda

extern "C" __global__ void allow_f32(const __grid_constant__ mlxrs::cuda::AllowArgs a) {
  mlxrs::cuda::allow<float>(a);
}
extern "C" __global__ void allow_bf16(const __grid_constant__ mlxrs::cuda::AllowArgs a) {
  mlxrs::cuda::allow<mlxrs::cuda::bf16>(a);
}
extern "C" __global__ void allow_f16(const __grid_constant__ mlxrs::cuda::AllowArgs a) {
  mlxrs::cuda::allow<mlxrs::cuda::f16>(a);
}
