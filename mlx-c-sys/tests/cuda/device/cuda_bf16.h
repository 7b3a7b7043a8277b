// A stand-in for CUDA's header of bf16: see cuda_fp16.h.
#pragma once

#include "cuda_fp16.h"

using __nv_bfloat16 = Small<8, 7>;
using __nv_bfloat162 = Two<__nv_bfloat16>;
inline float __bfloat162float(__nv_bfloat16 x) {
  return static_cast<float>(x.value());
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return __nv_bfloat16::of(x);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__nv_bfloat16::of(x), __nv_bfloat16::of(y)};
}
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) {
  return {x, x};
}
