#include "norm.h"

#include "cuda/launch.h"

namespace mlxrs::ops {

void add_norm_on_cuda(const NormOperands& of, float eps, mx::Stream s) {
  auto x = cuda::dense(of.x, s);
  int n = x.shape(-1);
  cuda::Launch launch(s);
  cuda::NormArgs args{};
  args.n = n;
  args.eps = eps;
  auto read = [&](const mx::array* a) -> const void* {
    if (a == nullptr) {
      return nullptr;
    }
    auto own = cuda::dense(*a, s);
    launch.keep(own);
    return launch.read(own);
  };
  args.x = launch.read(x);
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
