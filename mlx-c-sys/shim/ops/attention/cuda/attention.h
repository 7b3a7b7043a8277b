#pragma once

#include "cuda/launch.h"
#include "ops/attention/attention.h"

namespace mlxrs::ops {

// Whether the kernels of stored.cuh are used, and not those of attention.cu.
inline bool is_stored(int dim, int value_dim, const AttentionOptions& options) {
  return options.packing.bits > 0 || std::max(dim, value_dim) > 256;
}
// Whether the CUDA kernels support these operands.
inline bool fits_cuda(const mx::array& q, const mx::array& k, int value_dim, const AttentionOptions& options) {
  int dim = q.shape(3);
  // The limit of cuda::Divisor.
  if (k.shape(1) > 255 || q.shape(1) / k.shape(1) > 255) {
    return false;
  }
  bool is_packed = options.packing.bits > 0;
  if (is_stored(dim, value_dim, options) && !(is_packed ? CudaParts::packed_caches : CudaParts::wide_heads)) {
    return false;
  }
  return options.mask != Mask::array && dim % 8 == 0 && value_dim % 8 == 0 && dim <= (is_packed ? 256 : 576) &&
      value_dim <= (is_packed ? 256 : 512);
}
void stored_on_cuda(const Arrays& in, mx::array& y, const AttentionOptions& options, bool sinks, mx::Stream s);
// The arguments of all attention kernels. The arrays are registered with `launch`.
cuda::AttentionArgs attention_args(
    cuda::Launch& launch, const Arrays& in, mx::array& y, const AttentionOptions& options, bool sinks, mx::Stream s);
// Launches the kernel of attention.cu or prompt.cu.
void launch_attention(cuda::Launch& launch, cuda::AttentionArgs& args, const mx::array& q, int value_dim, mx::Stream s);
// Launches a kernel of stored.cuh, and one that joins its parts into y.
void launch_stored(
    cuda::Launch& launch, cuda::AttentionArgs& args, const mx::array& q, mx::array& y, const RowPacking& packing, mx::Stream s);
void attention_on_cuda(const Arrays& in, mx::array& y, const AttentionOptions& options, bool sinks, mx::Stream s);

} // namespace mlxrs::ops
