// The node of linear attention.
#include "tasks.h"

#ifdef MLXRS_CUDA
#include "cuda/delta.h"
#endif

namespace mlxrs::ops {
namespace {

class LinearAttention : public NodeWith<DeltaSettings> {
 public:
  using NodeWith::NodeWith;

  bool allocate(const Arrays&, Arrays& out) override {
    return allocate_lines(out);
  }

  void encode(const Arrays& in, Arrays& out) override {
    const auto& state = in[5];
    long tokens = in[0].shape(1), size = static_cast<long>(state.size()) / state.shape(0);
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, count = state.shape(0), tasks = DeltaTasks(settings_, in, state.shape(1), state.shape(2), state.shape(3), out[0]),
         state = RowMajor(state), widths = RowMajor(in[6]), after = out[1].data<float>()] {
          std::vector<char> copies[2];
          auto before = reinterpret_cast<const float*>(state.get(copies[0]));
          auto wide = reinterpret_cast<const int32_t*>(widths.get(copies[1]));
          DeltaRows rows;
          for (long row = 0; row < count; row++) {
            long real = std::clamp<long>(wide[row], 0, tokens);
            tasks.clear(row * tokens + real, (row + 1) * tokens);
            rows.segments.push_back({row * tokens, real, before + row * size, after + row * size});
            rows.ends.push_back(rows.segments.size());
          }
          tasks.run(count * tokens, rows);
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    delta_on_cuda(in, out, settings_, stream());
  }
#endif

  Arrays plain_all(const Arrays& in) override {
    return delta_plainly({in[0], in[1], in[2], in[3], in[4], in[5], in[6]}, settings_, stream());
  }

  const char* name() const override {
    return settings_.rule == Rule::scan ? "Scan" : "GatedDelta";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    const auto& state = in[5].shape();
    return {{in[0].shape(0), in[0].shape(1), state[1] * state[2]}, state};
  }
};

} // namespace

std::optional<Arrays> delta(const DeltaInputs& in, const DeltaSettings& settings, mx::Stream s) {
  auto dtype = in.x.dtype();
  if (!is_float(dtype) || in.a.dtype() != dtype || (settings.rule != Rule::scan && in.b.dtype() != dtype)) {
    return std::nullopt;
  }
#ifdef MLXRS_CUDA
  if (s.device == mx::Device::gpu && !delta_fits_cuda(in, s)) {
    return std::nullopt;
  }
#endif
  auto node = std::make_shared<LinearAttention>(s, settings);
  auto inputs = in.all();
  auto shapes = node->output_shapes(inputs);
  return mx::array::make_arrays(std::move(shapes), {dtype, mx::float32}, std::move(node), std::move(inputs));
}

} // namespace mlxrs::ops
