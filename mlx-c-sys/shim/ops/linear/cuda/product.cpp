#include "product.h"

#include "cuda/launch.h"

namespace mlxrs::ops {

void products_on_cuda(const ProductOperands& of, Arrays& out, mx::Stream s) {
  const auto& x = of.x;
  cuda::Launch launch(s);
  bool is_packed = of.matrices[0].size() > 1, has_gate = of.gate >= 0;
  int count = static_cast<int>(of.matrices.size()), k = x.shape(-1), m = static_cast<int>(x.size() / k);
  // Eights of rows of x in a block, and tiles of rows of w. They change how often operands are read, and no sum.
  int eights = m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8;
  int64_t rows = 0;
  for (const auto& parts : of.matrices) {
    rows += parts[0].shape(0);
  }
  int tiles = has_gate ? 2 : rows >= 8192 && eights < 8 ? 2 : 1;
  if (has_gate && eights == 8) {
    eights = 4;
  }
  auto type = std::string(cuda::name_of(x.dtype()));
  auto codes = codes_on_cuda(of.packing, is_packed);
  // Many rows have a kernel of their own, whose blocks are larger: it needs enough of them.
  bool is_wide = codes == "dense" || codes == "affine8" || codes == "mxfp8";
  int many_rows = is_wide ? 64 : 128;
  bool many = m > 64 && (rows + 127) / 128 * cuda::blocks_of(m, many_rows) >= 96;
  int step = has_gate ? 1 : many ? 2 : tiles;
  cuda::LinearArgs args{};
  args.x = launch.read_dense(x);
  args.count = count;
  args.m = m;
  args.k = k;
  args.group = is_packed ? of.packing.group : 1;
  args.gate = of.gate;
  for (auto& y : out) {
    cuda::allocate(y, s);
  }
  int all = 0;
  for (int i = 0; i < count; i++) {
    auto& matrix = args.of[i];
    auto parts = of.matrices[i];
    auto read = [&](size_t part) { return part < parts.size() ? launch.read_dense(parts[part]) : nullptr; };
    matrix.weight = read(0);
    matrix.scales = read(1);
    matrix.biases = read(2);
    matrix.n = parts[0].shape(0);
    int own = static_cast<int>(cuda::blocks_of(matrix.n, 16));
    own = (own + step - 1) / step * step;
    all = has_gate ? own : all + own;
    matrix.tiles = all;
    auto& y = out[has_gate ? 0 : i];
    matrix.y = i == 0 || !has_gate ? launch.write(y) : mx::gpu_ptr<char>(y);
  }
  bool is_usual = codes == "affine4" || codes == "affine8" || codes == "dense";
  auto module = std::string("linear/") + (is_usual ? "usual_" : "rare_") + type;
  if (many) {
    unsigned blocks = cuda::blocks_of(all, has_gate ? 4 : 8), shared = 2 * many_rows * 256;
    launch.run_with(shared, module.c_str(), codes + "_" + type + "_many", dim3(blocks, cuda::blocks_of(m, many_rows), 1), 256, args);
    return;
  }
  auto kernel = codes + "_" + type + "_" + std::to_string(eights) + "_" + std::to_string(tiles);
  launch.run(module.c_str(), kernel, dim3(static_cast<unsigned>(all / step), cuda::blocks_of(m, 8 * eights), 1), 256, args);
}

} // namespace mlxrs::ops
