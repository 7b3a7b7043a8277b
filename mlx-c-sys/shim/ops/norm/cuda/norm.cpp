// Launches the kernel of RMS norms.
#include "norm.h"

namespace mlxrs::ops {

cuda::NormArgs norm_args(cuda::Launch& launch, const NormOperands& of, mx::Stream s) {
  const auto& x = of.x;
  cuda::NormArgs args{};
  args.n = x.shape(-1);
  args.rows = static_cast<int>(x.size() / args.n);
  args.eps = of.eps;
  auto read = [&](const mx::array* a) { return a != nullptr ? launch.read_dense(*a) : nullptr; };
  args.x = read(&x);
  args.residual = read(of.residual);
  args.inner = read(of.inner);
  args.outer = read(of.outer);
  args.early = launch.is_old(args.inner) && launch.is_old(args.outer);
  if (of.sum != nullptr) {
    cuda::allocate(*of.sum, s);
    args.sum = launch.write(*of.sum);
  }
  if (of.normed != nullptr) {
    cuda::allocate(*of.normed, s);
    args.normed = launch.write(*of.normed);
  }
  return args;
}

bool joins_product(const NormOperands& of) {
  int n = of.x.shape(-1);
  return of.x.size() == static_cast<size_t>(n) && n % 2 == 0 && n <= cuda::most_joined && of.normed != nullptr;
}

void add_norm_on_cuda(const NormOperands& of, mx::Stream s) {
  cuda::Launch launch(s);
  auto args = norm_args(launch, of, s);
  int n = args.n;
  // A warp for each row pays off when there are enough warps to keep a GPU busy.
  constexpr int many_rows = 1024, rows_of_block = cuda::norm_threads / 32;
  uintptr_t all = 0;
  for (const void* at : {args.x, args.residual, args.inner, args.outer, static_cast<const void*>(args.sum), static_cast<const void*>(args.normed)}) {
    all |= reinterpret_cast<uintptr_t>(at);
  }
  auto type = std::string(cuda::name_of(of.x.dtype()));
  if (args.rows >= many_rows && n % 8 == 0 && n <= 2048 && all % 16 == 0) {
    int vectors = n <= 1024 ? 4 : n <= 1280 ? 5 : 8;
    launch.run(
        "norm/norm", "add_norm_by_warp_" + type + "_" + std::to_string(vectors), cuda::blocks_of(args.rows, rows_of_block), cuda::norm_threads,
        args);
    return;
  }
  // The pairs of elements of a thread that has its part of a row in registers.
  int pairs = n <= 4096 ? 8 : n <= 8192 ? 16 : 32;
  bool fits = n % 2 == 0 && all % 4 == 0 && n <= 2 * pairs * cuda::norm_threads;
  auto kernel = fits ? "add_norm_" + type + "_" + std::to_string(pairs) : "add_norm_in_memory_" + type;
  launch.run("norm/norm", kernel, static_cast<unsigned>(args.rows), cuda::norm_threads, args);
}

} // namespace mlxrs::ops
