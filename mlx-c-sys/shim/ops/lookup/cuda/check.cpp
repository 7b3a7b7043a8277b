// Launches the kernel that checks indices.
#include "check.h"

#include "cuda/report.h"

namespace mlxrs::ops {

void check_on_cuda(const std::string& what, const mx::array& indices, const std::vector<Range>& ranges, mx::array& y, mx::Stream s) {
  // At least 16 bytes: MLX puts smaller arrays into host memory.
  cuda::allocate(y, std::max<size_t>(y.nbytes(), 16), s);
  cuda::CheckArgs args{};
  args.size = static_cast<int64_t>(y.size());
  args.ndim = static_cast<int>(indices.ndim());
  args.bytes = static_cast<int>(indices.itemsize());
  args.count = static_cast<int>(ranges.size());
  args.is_signed = !mx::issubdtype(indices.dtype(), mx::unsignedinteger);
  if (args.size == 0) {
    return;
  }
  for (int i = 0; i < args.ndim; i++) {
    args.shape[i] = indices.shape(i);
    args.strides[i] = indices.strides(i);
  }
  for (size_t i = 0; i < ranges.size(); i++) {
    const auto& [most, from_end, size, window] = ranges[i];
    args.ranges[i] = {most, from_end, size, window};
  }
  args.report = cuda::report_of(cuda::Indexed::axis, what, s);
  cuda::Launch launch(s);
  args.from = launch.read(indices);
  args.to = launch.write(y);
  launch.run("lookup/check", "check_indices", std::min(cuda::blocks_of(args.size, 1024), 4096u), 256, args);
}

} // namespace mlxrs::ops
