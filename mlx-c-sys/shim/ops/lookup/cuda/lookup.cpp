// Launches the kernel that reads rows of a matrix.
#include "lookup.h"

#include "cuda/report.h"
#include "ops/linear/cuda/product.h"

namespace mlxrs::ops {

void launch_lookup(cuda::Launch& launch, const cuda::LookupArgs& args, const std::string& codes, const std::string& type) {
  // A thread unpacks 32 columns.
  unsigned blocks = cuda::blocks_of(static_cast<int64_t>(args.count) * (args.k / 32), 128);
  launch.run("lookup/lookup", "lookup_" + codes + "_" + type, blocks, 128, args);
}

void lookup_on_cuda(
    const mx::array* indices, std::span<const mx::array> parts, const Packing& packing, mx::array& y, mx::Stream s) {
  cuda::allocate(y, s);
  cuda::Launch launch(s);
  cuda::LookupArgs args{};
  if (indices != nullptr) {
    args.indices = launch.read_dense<uint32_t>(*indices);
    args.is_signed = indices->dtype() == mx::int32;
    args.report = cuda::report_of(cuda::Indexed::rows, "rows", s);
  }
  bool is_packed = parts.size() > 1;
  args.weight = launch.read_dense(parts[0]);
  args.scales = is_packed ? launch.read_dense(parts[1]) : nullptr;
  args.biases = parts.size() > 2 ? launch.read_dense(parts[2]) : nullptr;
  args.y = launch.write(y);
  args.n = parts[0].shape(0);
  args.count = indices != nullptr ? static_cast<int>(indices->size()) : args.n;
  args.k = y.shape(-1);
  args.group_bits = is_packed ? cuda::group_bits_of(packing.group) : 0;
  launch_lookup(launch, args, codes_on_cuda(packing, is_packed), cuda::name_of(y.dtype()));
}

} // namespace mlxrs::ops
