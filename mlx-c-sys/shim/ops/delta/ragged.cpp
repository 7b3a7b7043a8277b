// The node of linear attention over ragged rows.
#include "tasks.h"

#ifdef MLXRS_CUDA
#include "cuda/delta.h"
#endif

namespace mlxrs::ops {
namespace {

struct Settings {
  DeltaSettings rule;
  int heads, dim;

  bool operator==(const Settings&) const = default;
};

// Inputs: x, a, b, rate, bias, and the rows.
class RaggedLinearAttention : public RaggedNode<Settings> {
 public:
  using RaggedNode::RaggedNode;

  // `encode` writes into an input buffer or allocates a new one.
  bool allocate(const Arrays&, Arrays& out) override {
    Arrays y{out[0]};
    allocate_lines(y);
    return true;
  }

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    auto of = inputs(in);
    auto state = of.state(settings_.rule.key_heads);
    long tokens = y.shape(1), size = static_cast<long>(state[0]) * state[1] * state[2];
    float* pool = nullptr;
    if (rows_.has_pool) {
      begin_pool(in, rows_, out[1], stream());
      pool = out[1].data<float>();
    }
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, tasks = DeltaTasks(settings_.rule, in, state[0], state[1], state[2], y), reader = RowReader(name(), of.rows, tokens)] {
          std::vector<char> copies[3];
          auto rows = reader.get(copies);
          tasks.clear(rows.used(), tokens);
          auto at = [&](long slot) { return slot < 0 ? nullptr : pool + slot * size; };
          DeltaRows all;
          for (long row = 0; row < rows.count; row++) {
            // A segment ends with a token whose state is kept.
            long first = rows.first(row), end = first + rows.tokens(row);
            const float* before = at(rows.before(row));
            for (long token = rows.first_after(row); token < end; token++) {
              if (float* after = at(rows.after(row, token))) {
                all.segments.push_back({first, token + 1 - first, before, after});
                before = after;
                first = token + 1;
              }
            }
            if (first < end) {
              all.segments.push_back({first, end - first, before, nullptr});
            }
            all.ends.push_back(all.segments.size());
          }
          tasks.run(rows.used(), all);
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    if (rows_.has_pool) {
      begin_pool(in, rows_, out[1], stream());
    }
    ragged_delta_on_cuda(inputs(in), out, settings_.rule, stream());
  }
#endif

  Arrays plain_all(const Arrays& in) override {
    return ragged_delta_plainly(inputs(in), settings_.rule, stream());
  }

  const char* name() const override {
    return settings_.rule.rule == Rule::scan ? "RaggedScan" : "RaggedGatedDelta";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto of = inputs(in);
    auto state = of.state(settings_.rule.key_heads);
    std::vector<mx::Shape> shapes{{1, in[0].shape(1), state[0] * state[1]}};
    if (rows_.has_pool) {
      shapes.push_back(of.rows.pool->shape());
    }
    return shapes;
  }

 private:
  RaggedDeltaInputs inputs(const Arrays& in) const {
    return {in[0], in[1], in[2], in[3], in[4], settings_.heads, settings_.dim, Ragged::of(in, rows_)};
  }
};

} // namespace

std::optional<Arrays> ragged_delta(const RaggedDeltaInputs& in, const DeltaSettings& settings, mx::Stream s) {
  auto dtype = in.x.dtype();
  bool same = in.a.dtype() == dtype && (settings.rule == Rule::scan || in.b.dtype() == dtype);
  if (!is_float(dtype) || !same) {
    return std::nullopt;
  }
#ifdef MLXRS_CUDA
  if (s.device == mx::Device::gpu && !ragged_delta_fits_cuda(in, s)) {
    return std::nullopt;
  }
#endif
  auto node = std::make_shared<RaggedLinearAttention>(s, Settings{settings, in.heads, in.dim}, in.rows.settings);
  Arrays inputs{in.x, in.a, in.b, in.rate, in.bias};
  in.rows.append(inputs);
  auto shapes = node->output_shapes(inputs);
  std::vector<mx::Dtype> dtypes{dtype, mx::float32};
  dtypes.resize(shapes.size(), mx::float32);
  return mx::array::make_arrays(std::move(shapes), dtypes, std::move(node), std::move(inputs));
}

} // namespace mlxrs::ops
