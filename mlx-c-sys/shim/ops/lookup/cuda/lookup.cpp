#include "lookup.h"

#include "cuda/launch.h"
#include "ops/linear/cuda/product.h"

namespace mlxrs::ops {

void lookup_on_cuda(const Arrays& in, const Packing& packing, mx::array& y, mx::Stream s) {
  cuda::allocate(y, s);
  cuda::Launch launch(s);
  cuda::LookupArgs args{};
  args.indices = launch.read_dense<uint32_t>(in[0]);
  args.is_signed = in[0].dtype() == mx::int32;
  args.weight = launch.read_dense(in[1]);
  args.scales = in.size() > 2 ? launch.read_dense(in[2]) : nullptr;
  args.biases = in.size() > 3 ? launch.read_dense(in[3]) : nullptr;
  args.y = launch.write(y);
  args.count = static_cast<int>(in[0].size());
  args.n = in[1].shape(0);
  args.k = y.shape(-1);
  args.group = in.size() > 2 ? packing.group : 1;
  auto name = "lookup_" + codes_on_cuda(packing, in.size() > 2) + "_" + cuda::name_of(y.dtype());
  launch.run("lookup/lookup", name, static_cast<unsigned>(args.count), 128, args);
}

} // namespace mlxrs::ops
