#include "product.h"

#include <algorithm>
#include <optional>

#include "batch.h"
#include "cuda/driver.h"
#include "cuda/launch.h"
#include "ops/lookup/cuda/lookup.h"

namespace mlxrs::ops {

namespace {

// Rows of w in a tile.
constexpr int tile_rows = 16;
// The most rows of x that `product` multiplies. Each 64 rows read the weights again, so that `many` is faster with more.
constexpr int few_rows = 256, few_rows_of_packed = 512;
// `many` needs unpacked weights. They are unpacked in slices of this many bytes, which stay in L2.
constexpr int64_t slice_bytes = 32 << 20;
// The threads of a block, and the most blocks that compute the norm of x before they multiply.
constexpr int product_threads = 256, most_joined_blocks = 4 * cuda::processors;

bool is_aligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % 16 == 0;
}

// Assigns tiles of `rows` rows to the matrices; the number of tiles of each matrix is a multiple of `step`. Returns the
// number of all tiles, or with a gate that of one matrix.
int place(cuda::LinearArgs& args, int step, int rows = tile_rows) {
  int all = 0;
  for (int i = 0; i < args.count; i++) {
    int own = static_cast<int>(cuda::blocks_of(args.of[i].n, rows));
    own = (own + step - 1) / step * step;
    all = args.gate >= 0 ? own : all + own;
    args.of[i].tiles = all;
  }
  return all;
}

// Whether the kernels of a coding are in the modules for codings that are used much.
bool is_usual(const std::string& codes) {
  return codes == "dense" || codes == "halves" || codes == "affine4" || codes == "affine8";
}

// The order in which words of x match those of a coding (Pairs in codes.cuh).
std::string pairs_of(const std::string& codes) {
  return codes == "affine4" ? "halves" : "adjacent";
}

// How the kernels of batch.cuh divide a product: `rows` rows of x a block, and the parts of the columns.
struct BatchPlan {
  int rows, parts;
};

// The tiles of w of the kernels of batch.cuh.
int64_t places_of(const ProductOperands& of) {
  int64_t halves = 0;
  for (const auto& matrix : of.matrices) {
    halves += cuda::blocks_of(matrix[0].shape(0), cuda::tile_of_w);
  }
  return (halves + 1) / 2;
}

// The plan for a product, or nothing if `product` is faster. The numbers are from measurements on an H100 with the shapes of
// Llama 3.1 8B and Qwen3 0.6B; they change no order of sums.
std::optional<BatchPlan> batch_plan(const ProductOperands& of, bool is_packed, int m, int k, mx::Stream s) {
  if (m <= 8 || !multiplies_by_groups(s)) {
    return std::nullopt;
  }
  for (const auto& matrix : of.matrices) {
    if (!is_packed && !is_aligned(mx::gpu_ptr<char>(matrix[0]))) {
      return std::nullopt;
    }
  }
  int64_t places = places_of(of), weights = places * 128 * k;
  bool is_large = weights >= 8 << 20;
  if (m <= 16) {
    return !is_packed && places >= 128 ? std::optional(BatchPlan{32, 1}) : std::nullopt;
  }
  if (is_packed) {
    bool is_long = k >= 2048;
    if (m <= 64) {
      int rows = m <= 32 ? 32 : 64;
      if (places >= (m <= 32 ? 128 : 40)) {
        return BatchPlan{rows, 1};
      }
      return is_long && places <= 32 ? std::optional(BatchPlan{rows, 8}) : std::nullopt;
    }
    int64_t groups = (m + 127) / 128;
    return BatchPlan{128, is_long && places * groups <= 32 ? 8 : 1};
  }
  if (m <= 32) {
    return is_large ? std::optional(BatchPlan{32, places >= 96 ? 1 : 2}) : std::nullopt;
  }
  if (m <= 64) {
    return BatchPlan{64, places <= 16 ? 8 : places <= 64 ? 2 : 1};
  }
  int64_t groups = (m + 63) / 64;
  if (places * groups <= 32) {
    return BatchPlan{64, 8};
  }
  if (places * groups <= 64) {
    return BatchPlan{64, 2};
  }
  return BatchPlan{places * groups <= 128 && !is_large ? 64 : 128, 1};
}

// x [m, k] in the order of columns in which the kernels of batch.cuh read it.
mx::array permuted(const mx::array& x, int m, int k, const std::string& pairs, int rows, mx::Stream s) {
  int64_t blocks = cuda::blocks_of(k, 128), all = cuda::blocks_of(m, rows) * int64_t(rows);
  auto y = cuda::scratch(all * blocks * 256, s);
  cuda::Launch launch(s);
  const void* from = launch.read(x);
  void* to = launch.write(y);
  dim3 grid(static_cast<unsigned>(blocks), cuda::blocks_of(all, 64), 1);
  launch.run("linear/permute", "permute_" + pairs + "_" + std::to_string(rows), grid, 256, from, to, m, k);
  return y;
}

// Launches a kernel of batch.cuh. x in the arguments is permuted. The launch has read the matrices and writes their results.
void run_batch(
    cuda::Launch& launch, cuda::LinearArgs args, const BatchPlan& plan, const std::string& codes, const std::string& type, bool is_packed) {
  int all = place(args, cuda::tile_of_w / tile_rows);
  cuda::Tiles tiles{};
  for (int i = 0; i < args.count && !is_packed; i++) {
    const auto& matrix = args.of[i];
    cuuint64_t shape[] = {static_cast<cuuint64_t>(args.k), static_cast<cuuint64_t>(matrix.n)}, row_bytes = 2 * shape[0];
    cuuint32_t box[] = {cuda::columns_of_copy, cuda::tile_of_w}, steps[] = {1, 1};
    cuda::check(
        cuda::Driver::get().describe_tiles(
            &tiles.of[i], CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(matrix.weight), shape, &row_bytes, box, steps,
            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "the tiles of a matrix cannot be described");
  }
  unsigned places = cuda::blocks_of(all, args.gate >= 0 ? 4 : 8), groups = cuda::blocks_of(args.m, plan.rows);
  dim3 grid(plan.parts == 1 ? groups : groups * places, plan.parts == 1 ? places : plan.parts, 1);
  if (plan.parts > 1) {
    launch.use_clusters(plan.parts);
  }
  auto module = std::string(is_usual(codes) ? "linear/batch_usual_" : "linear/batch_rare_") + type;
  auto kernel = codes + "_" + type + "_batch_" + std::to_string(plan.rows) + "_" + std::to_string(plan.parts);
  launch.run_with(
      cuda::batch_shared(is_packed, plan.rows, plan.parts), module.c_str(), kernel, grid, cuda::batch_threads(is_packed), args, tiles);
}

// Products with many rows of x. Packed (and unaligned) matrices are unpacked first, slice by slice.
void many_products(const cuda::LinearArgs& given, const std::string& codes, const std::string& type, const mx::array& x, Arrays& out, mx::Stream s) {
  bool expands = codes != "dense";
  int64_t rows = 0;
  for (int i = 0; i < given.count; i++) {
    expands = expands || !is_aligned(given.of[i].weight);
    rows = std::max<int64_t>(rows, given.of[i].n);
  }
  int64_t row_bytes = int64_t(2) * given.k;
  int64_t slice = expands ? std::max<int64_t>(slice_bytes / (row_bytes * given.count) / 128 * 128, 128) : rows;
  slice = std::min(slice, (rows + 127) / 128 * 128);
  auto expanded = cuda::scratch(expands ? slice * row_bytes * given.count : 4, s);
  auto pairs = pairs_of(codes);
  // Hopper's warp groups are three to four times as fast.
  BatchPlan plan{128, 1};
  std::optional<mx::array> x_of_groups;
  if (multiplies_by_groups(s)) {
    x_of_groups = permuted(x, given.m, given.k, pairs, plan.rows, s);
  }
  for (int64_t first = 0; first < rows; first += slice) {
    auto args = given;
    args.count = 0;
    for (int i = 0; i < given.count; i++) {
      auto matrix = given.of[i];
      matrix.n = static_cast<int>(std::min<int64_t>(matrix.n - first, slice));
      if (matrix.n <= 0) {
        continue;
      }
      matrix.y = static_cast<char*>(matrix.y) + 2 * first;
      if (expands) {
        cuda::Launch launch(s);
        launch.keep(expanded);
        cuda::LookupArgs rows{};
        rows.weight = matrix.weight, rows.scales = matrix.scales, rows.biases = matrix.biases;
        rows.y = launch.write<char>(expanded) + i * slice * row_bytes;
        rows.count = matrix.n, rows.n = given.of[i].n, rows.k = given.k, rows.group_bits = given.group_bits;
        rows.first = first;
        launch_lookup(launch, rows, codes, type);
        matrix.weight = rows.y;
      }
      args.of[args.count++] = matrix;
    }
    if (x_of_groups) {
      // The kernel before this one writes the weights.
      args.early = false;
      cuda::Launch launch(s);
      args.x = launch.read(*x_of_groups);
      launch.keep(*x_of_groups);
      launch.read(expanded);
      for (auto& y : out) {
        launch.write(y);
      }
      run_batch(launch, args, plan, pairs == "halves" ? pairs : "dense", type, false);
      continue;
    }
    int tiles = place(args, 2), per_block = args.gate >= 0 ? 4 : 8;
    // Tiles of 128 rows of x are faster. Tiles of 64 are chosen if they leave fewer multiprocessors idle in the last
    // wave.
    unsigned columns = cuda::blocks_of(tiles, per_block);
    auto waves = [&](int rows) { return cuda::blocks_of(int64_t(columns) * cuda::blocks_of(args.m, rows), cuda::processors) * rows; };
    auto& device = mx::cu::device(s.device);
    int major = device.compute_capability_major(), minor = device.compute_capability_minor();
    bool has_room = cuda::is_roomy(major), takes_128 = has_room || (major == 8 && minor == 0);
    int block_rows = !takes_128 || waves(64) < waves(128) ? 64 : 128;
    cuda::Launch launch(s);
    launch.read(x);
    launch.read(expanded);
    for (auto& y : out) {
      launch.write(y);
    }
    unsigned shared = static_cast<unsigned>((128 + block_rows) * 256 * cuda::many_stages(has_room, block_rows));
    launch.run_with(
        shared, ("linear/many_" + type).c_str(), "many_" + pairs + "_" + type + "_" + std::to_string(block_rows),
        dim3(cuda::blocks_of(args.m, block_rows), columns, 1), 256, args);
  }
}

} // namespace

bool multiplies_by_groups(mx::Stream s) {
  return mx::cu::device(s.device).compute_capability_major() == 9 &&
      cuda::has_kernel(s, "linear/batch_usual_bf16", "dense_bf16_batch_64_1");
}

void products_on_cuda(const ProductOperands& of, const NormOperands* norm, Arrays& out, mx::Stream s) {
  bool is_packed = of.matrices[0].size() > 1, has_gate = of.gate >= 0;
  int count = static_cast<int>(of.matrices.size()), k = of.x.shape(-1), m = static_cast<int>(of.x.size() / k);
  auto type = std::string(cuda::name_of(of.x.dtype()));
  auto codes = codes_on_cuda(of.packing, is_packed);
  int64_t rows = 0;
  for (const auto& matrix : of.matrices) {
    rows += matrix[0].shape(0);
  }
  // `eights` times 8 rows of x a block, and tiles of w a block. They decide how often operands are read; they change no
  // order of sums.
  int eights = m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8;
  // Rows of w, one tile for each multiprocessor. With fewer of them tiles are halved to 8 rows. Packed rows are read faster by
  // fewer blocks, because each of them has more to unpack. The numbers are from measurements on an H100 of 256 to 10,240 rows.
  constexpr int64_t wave = int64_t(cuda::processors) * tile_rows;
  bool is_half = eights == 1 && !has_gate && rows <= (is_packed ? wave / 2 : wave);
  int tiles = is_half ? 0 : has_gate || rows >= (eights == 1 && is_packed ? 2 * wave : 6144) ? 2 : 1;
  // Blocks that do not run at the same time would compute the norm of x one after the other.
  bool joins = m == 1 && rows <= int64_t(most_joined_blocks) * (is_half ? tile_rows / 2 : tiles * tile_rows);
  if (norm != nullptr && !(joins && joins_product(*norm))) {
    add_norm_on_cuda(*norm, s);
    norm = nullptr;
  }
  // The result of a norm that the kernel computes is dense.
  auto x = norm != nullptr ? of.x : cuda::dense(of.x, s);
  // For more rows it is faster to unpack the weights to memory once.
  constexpr int most_rows_of_packed = 1024;
  auto plan = is_packed && m > most_rows_of_packed ? std::nullopt : batch_plan(of, is_packed, m, k, s);
  if (plan) {
    x = permuted(x, m, k, pairs_of(codes), plan->rows, s);
  }

  cuda::Launch launch(s);
  auto of_norm = norm != nullptr ? norm_args(launch, *norm, s) : cuda::NormArgs{};
  launch.keep(x);
  cuda::LinearArgs args{};
  args.x = launch.read(x);
  args.count = count;
  args.m = m;
  args.k = k;
  args.group_bits = is_packed ? cuda::group_bits_of(of.packing.group) : 0;
  args.gate = of.gate;
  args.early = norm == nullptr || of_norm.early;
  for (auto& y : out) {
    cuda::allocate(y, s);
  }
  for (int i = 0; i < count; i++) {
    auto& matrix = args.of[i];
    auto parts = of.matrices[i];
    auto read = [&](size_t part) -> const void* {
      if (part >= parts.size()) {
        return nullptr;
      }
      const void* at = launch.read_dense(parts[part]);
      args.early = args.early && launch.is_old(at);
      return at;
    };
    matrix.weight = read(0);
    matrix.scales = read(1);
    matrix.biases = read(2);
    matrix.n = matrix.stride = parts[0].shape(0);
    auto& y = out[has_gate ? 0 : i];
    matrix.y = i == 0 || !has_gate ? launch.write(y) : mx::gpu_ptr<char>(y);
  }
  if (plan) {
    run_batch(launch, args, *plan, codes, type, is_packed);
    return;
  }
  if (m > (is_packed ? few_rows_of_packed : few_rows)) {
    many_products(args, codes, type, x, out, s);
    return;
  }
  int step = has_gate ? 1 : std::max(tiles, 1), all = place(args, step, is_half ? tile_rows / 2 : tile_rows);
  auto module = std::string("linear/") + (is_usual(codes) ? "usual_" : "rare_") + type;
  auto kernel = codes + "_" + type + "_" + (norm != nullptr ? "normed" : std::to_string(eights)) + "_" + std::to_string(tiles);
  dim3 blocks(static_cast<unsigned>(all / step), cuda::blocks_of(m, 8 * eights), 1);
  if (norm != nullptr) {
    launch.run_with(static_cast<unsigned>(2 * k), module.c_str(), kernel, blocks, product_threads, args, of_norm);
    return;
  }
  launch.run(module.c_str(), kernel, blocks, product_threads, args);
}

} // namespace mlxrs::ops
