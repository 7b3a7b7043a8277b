// Launches the kernel of gates and soft caps.
#include "gated.h"

#include "cuda/launch.h"

namespace mlxrs::ops {

void gated_on_cuda(int kind, const mx::array& gate, const mx::array* up, float cap, mx::array& y, mx::Stream s) {
  cuda::allocate(y, s);
  cuda::Launch launch(s);
  const void *x = launch.read_dense(gate), *other = up != nullptr ? launch.read_dense(*up) : nullptr;
  cuda::GatedArgs args{x, other, launch.write(y), static_cast<int64_t>(y.size()), kind, cap};
  launch.run("gated/gated", std::string("gated_") + cuda::name_of(y.dtype()), std::min(cuda::blocks_of(args.n, 1024), 8192u), 256, args);
}

void gated_vjp_on_cuda(int kind, const Arrays& in, Arrays& out, mx::Stream s) {
  for (auto& array : out) {
    cuda::allocate(array, s);
  }
  cuda::Launch launch(s);
  const void *gate = launch.read_dense(in[0]), *up = launch.read_dense(in[1]), *dy = launch.read_dense(in[2]);
  cuda::GatedVjpArgs args{gate, up, dy, launch.write(out[0]), launch.write(out[1]), static_cast<int64_t>(in[0].size()), kind};
  launch.run("gated/gated", std::string("gated_vjp_") + cuda::name_of(in[0].dtype()), std::min(cuda::blocks_of(args.n, 1024), 8192u), 256, args);
}

} // namespace mlxrs::ops
