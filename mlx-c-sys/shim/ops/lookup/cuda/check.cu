// Checks indices of any integer type. Each thread handles single elements in a grid-stride loop.
#include "cuda/args.h"
#include "cuda/device.cuh"
#include "cuda/report.cuh"

namespace mlxrs::cuda {

// The index at offset `at`. A value that exceeds I64 exceeds any axis, so it becomes INT64_MAX.
__device__ inline int64_t index_at(const void* from, int64_t at, int bytes, bool is_signed) {
  switch (bytes) {
    case 1:
      return is_signed ? static_cast<const int8_t*>(from)[at] : static_cast<const uint8_t*>(from)[at];
    case 2:
      return is_signed ? static_cast<const int16_t*>(from)[at] : static_cast<const uint16_t*>(from)[at];
    case 4:
      // Without the conversions, both would become unsigned.
      return is_signed ? int64_t{static_cast<const int32_t*>(from)[at]} : int64_t{static_cast<const uint32_t*>(from)[at]};
    default: {
      int64_t value = static_cast<const int64_t*>(from)[at];
      return !is_signed && value < 0 ? INT64_MAX : value;
    }
  }
}

} // namespace mlxrs::cuda

// Copies the indices to dense memory. An index out of range becomes 0, and is reported.
extern "C" __global__ void check_indices(const __grid_constant__ mlxrs::cuda::CheckArgs a) {
  using namespace mlxrs::cuda;
  wait_for_previous_alone();
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.size; i += step) {
    int64_t at = place_in(i, a.ndim, a.shape, a.strides);
    const auto& range = a.ranges[i % a.count];
    int64_t index = index_at(a.from, at, a.bytes, a.is_signed);
    int64_t place = index < 0 ? index + range.from_end : index;
    bool holds = place >= 0 && place <= range.most;
    if (!holds) {
      report(a.report, index, range.size, range.window);
    }
    int64_t checked = holds ? index : 0;
    switch (a.bytes) {
      case 1:
        static_cast<int8_t*>(a.to)[i] = static_cast<int8_t>(checked);
        break;
      case 2:
        static_cast<int16_t*>(a.to)[i] = static_cast<int16_t>(checked);
        break;
      case 4:
        static_cast<int32_t*>(a.to)[i] = static_cast<int32_t>(checked);
        break;
      default:
        static_cast<int64_t*>(a.to)[i] = checked;
    }
  }
}
