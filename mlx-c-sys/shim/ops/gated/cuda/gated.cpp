#include "gated.h"

#include "cuda/launch.h"

namespace mlxrs::ops {

void gated_on_cuda(int kind, const mx::array& gate, const mx::array* up, float cap, mx::array& y, mx::Stream s) {
  cuda::allocate(y, s);
  auto x = cuda::dense(gate, s);
  cuda::Launch launch(s);
  launch.keep(x);
  cuda::GatedArgs args{launch.read(x), nullptr, nullptr, static_cast<int64_t>(y.size()), kind, cap};
  if (up != nullptr) {
    auto own = cuda::dense(*up, s);
    launch.keep(own);
    args.up = launch.read(own);
  }
  args.y = launch.write(y);
  launch.run("gated/gated", std::string("gated_") + cuda::name_of(y.dtype()), std::min(cuda::blocks_of(args.n, 1024), 8192u), 256, args);
}

} // namespace mlxrs::ops
