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

} // namespace mlxrs::ops
