// Launches the kernel of RMS norms.
#include "norm.h"

#include "cuda/launch.h"

namespace mlxrs::ops {

void add_norm_on_cuda(const NormOperands& of, float eps, mx::Stream s) {
  const auto& x = of.x;
  int n = x.shape(-1);
  cuda::Launch launch(s);
  cuda::NormArgs args{};
  args.n = n;
  args.eps = eps;
  auto read = [&](const mx::array* a) { return a != nullptr ? launch.read_dense(*a) : nullptr; };
  args.x = read(&x);
  args.residual = read(of.residual);
  args.inner = read(of.inner);
  args.outer = read(of.outer);
  if (of.sum != nullptr) {
    cuda::allocate(*of.sum, s);
    args.sum = launch.write(*of.sum);
  }
  if (of.normed != nullptr) {
    cuda::allocate(*of.normed, s);
    args.normed = launch.write(*of.normed);
  }
  launch.run("norm/norm", std::string("add_norm_") + cuda::name_of(x.dtype()), cuda::blocks_of(x.size(), n), 256, args);
}

} // namespace mlxrs::ops
