// Launches the kernels of linear attention.
#include "delta.h"

#include "args.h"
#include "cuda/launch.h"
#include "rows.h"

namespace mlxrs::ops {
namespace {

// Fills in the inputs of tokens, and launches the kernel of the rule whose name begins with `prefix`.
void launch_delta(
    cuda::Launch& launch, cuda::DeltaArgs& args, const char* module, const char* prefix, const Arrays& in,
    const DeltaSettings& settings, unsigned rows) {
  const auto& x = in[0];
  args.x = launch.read_dense(x);
  args.a = launch.read_dense(in[1]);
  args.b = launch.read_dense(in[2]);
  args.rate = launch.read_dense<float>(in[3]);
  args.bias = launch.read_dense<float>(in[4]);
  args.tokens = x.shape(1), args.width = x.shape(2);
  args.key_heads = settings.key_heads;
  args.least = settings.least, args.most = settings.most, args.bound = settings.bound;
  bool is_scan = settings.rule == Rule::scan, is_aligned = true;
  for (const void* at : {args.x, args.a}) {
    is_aligned = is_aligned && reinterpret_cast<uintptr_t>(at) % 16 == 0;
  }
  args.whole = is_aligned && args.dim % 8 == 0 && args.width % 8 == 0 && (!is_scan || args.heads * args.value_dim % 8 == 0);
  int eights = args.dim <= 64 ? 1 : args.dim <= 128 ? 2 : 4;
  const char* rule = is_scan ? "scan_" : settings.rule == Rule::channels ? "channels_" : "delta_";
  launch.run(
      module, prefix + std::string(rule) + cuda::name_of(x.dtype()) + "_" + std::to_string(eights),
      dim3(cuda::blocks_of(args.value_dim, cuda::delta_block_rows), static_cast<unsigned>(args.heads), rows), 128, args);
}

} // namespace

bool delta_fits_cuda(const DeltaInputs& in, mx::Stream s) {
  return takes(s, in.x) && !in.state.is_tracer() && !in.a.is_tracer() && !in.b.is_tracer() && in.state.size() > 0 &&
      in.state.shape(3) <= cuda::most_delta_dim;
}

void delta_on_cuda(const Arrays& in, Arrays& out, const DeltaSettings& settings, mx::Stream s) {
  const auto& state = in[5];
  for (auto& y : out) {
    cuda::allocate(y, s);
  }
  cuda::Launch launch(s);
  cuda::DeltaArgs args{};
  args.before = launch.read_dense<float>(state);
  args.widths = launch.read_resident<int32_t>(in[6]);
  args.y = launch.write(out[0]);
  args.after = launch.write<float>(out[1]);
  args.heads = state.shape(1), args.value_dim = state.shape(2), args.dim = state.shape(3);
  launch_delta(launch, args, "delta/delta", "", in, settings, static_cast<unsigned>(in[0].shape(0)));
}

bool ragged_delta_fits_cuda(const RaggedDeltaInputs& in, mx::Stream s) {
  const auto& pool = in.rows.pool;
  return takes(s, in.x) && !is_traced({&in.a, &in.b, pool ? &*pool : &in.x}) && in.dim <= cuda::most_delta_dim;
}

void ragged_delta_on_cuda(const RaggedDeltaInputs& in, Arrays& out, const DeltaSettings& settings, mx::Stream s) {
  cuda::allocate(out[0], s);
  cuda::Launch launch(s);
  cuda::DeltaArgs args{};
  args.rows = cuda::rows_of(launch, in.rows);
  args.y = launch.write(out[0]);
  if (in.rows.settings.has_pool) {
    args.after = launch.write<float>(out[1]);
    args.before = args.after;
  }
  auto state = in.state(settings.key_heads);
  args.heads = state[0], args.value_dim = state[1], args.dim = state[2];
  launch_delta(
      launch, args, "delta/ragged", "ragged_", {in.x, in.a, in.b, in.rate, in.bias}, settings,
      static_cast<unsigned>(in.rows.count()) + 1);
}

} // namespace mlxrs::ops
