#include "experts.h"

#include "args.h"
#include "cuda/launch.h"
#include "cuda/report.h"
#include "ops/linear/cuda/product.h"

namespace mlxrs::ops {
namespace {

// If x [.., 1, k] is a sequence of dense rows where each row repeats the same number of times (a broadcast axis of
// stride 0), that number of repeats. 0 for other layouts.
int shared_rows(const mx::array& x) {
  if (x.strides(-1) != 1 || x.offset() % 16 != 0) {
    return 0;
  }
  int64_t share = 1, next = x.shape(-1);
  for (int axis = static_cast<int>(x.ndim()) - 2; axis >= 0; axis--) {
    int size = x.shape(axis);
    if (size == 1) {
      continue;
    }
    if (x.strides(axis) == 0 && next == x.shape(-1)) {
      share *= size;
    } else if (x.strides(axis) == next) {
      next *= size;
    } else {
      return 0;
    }
  }
  return static_cast<int>(share);
}

} // namespace

bool experts_fit_cuda(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s) {
  constexpr size_t most_rows = 1 << 20;
  return takes(s, x) && !w.weight.is_tracer() && x.shape(-1) % 32 == 0 && w.weight.size() > 0 && indices.size() > 0 &&
      std::max(indices.size(), x.size() / x.shape(-1)) <= most_rows && w.weight.shape(0) <= cuda::most_experts;
}

void experts_on_cuda(const ExpertOperands& of, mx::array& y, mx::Stream s) {
  cuda::allocate(y, s);
  cuda::Launch launch(s);
  cuda::ExpertsArgs args{};
  args.share = shared_rows(of.x);
  if (args.share > 0) {
    args.x = launch.read(of.x);
  } else {
    mx::array dense(of.x.shape(), of.x.dtype(), nullptr, {});
    cuda::copy(of.x, dense, s);
    launch.keep(dense);
    args.x = launch.read(dense);
    args.share = 1;
  }
  auto indices = cuda::dense(of.indices, s);
  launch.keep(indices);
  args.indices = launch.read<uint32_t>(indices);
  const auto& weight = of.stacks[0][0];
  bool is_packed = of.stacks[0].size() > 1;
  for (size_t i = 0; i < of.stacks.size(); i++) {
    auto read = [&](size_t part) { return part < of.stacks[i].size() ? launch.read_dense(of.stacks[i][part]) : nullptr; };
    args.of[i] = {read(0), read(1), read(2)};
  }
  args.y = launch.write(y);
  args.experts = weight.shape(0);
  args.n = weight.shape(1);
  args.k = of.x.shape(-1);
  args.m = static_cast<int>(y.size() / args.n);
  args.group_bits = is_packed ? cuda::group_bits_of(of.packing.group) : 0;
  args.gate = of.gate;
  args.report = cuda::report_of(cuda::Indexed::experts, "experts", s);
  // The rows of a task (8 or 32). This number decides how often a matrix is read from memory; it does not change the
  // order of any sum.
  int eights = args.m > 6 * std::min(args.m, args.experts) ? 4 : 1, tasks = args.m;
  if (args.m > cuda::few_indices) {
    tasks = cuda::most_tasks(args.m, args.experts, 8 * eights);
    auto order = cuda::scratch(sizeof(int) * args.m, s), table = cuda::scratch(sizeof(cuda::ExpertTask) * tasks, s);
    cuda::Launch group(s);
    cuda::GroupArgs rows{group.read<uint32_t>(indices), group.write<int>(order), group.write<cuda::ExpertTask>(table),
                         args.experts, args.m, 8 * eights, tasks, args.report};
    group.run("experts/group", "group_rows", dim3(1, 1, 1), 1024, rows);
    launch.keep(order);
    launch.keep(table);
    args.order = launch.read<int>(order);
    args.tasks = launch.read<cuda::ExpertTask>(table);
  }
  auto codes = codes_on_cuda(of.packing, is_packed), type = std::string(cuda::name_of(of.x.dtype()));
  bool is_usual = codes == "affine4" || codes == "affine8" || codes == "mxfp4" || codes == "dense";
  auto kernel = "experts_" + codes + "_" + type + "_" + std::to_string(eights) + "_" + std::to_string(of.stacks.size());
  launch.run(
      ((is_usual ? "experts/usual_" : "experts/rare_") + type).c_str(), kernel,
      dim3(cuda::blocks_of(args.n, 16), static_cast<unsigned>(tasks), 1), 256, args);
}

} // namespace mlxrs::ops
