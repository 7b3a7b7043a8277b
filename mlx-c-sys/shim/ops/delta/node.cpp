#include <cmath>

#include "delta.h"
#include "ops/linear/operands.h"

namespace mlxrs::ops {
namespace {

// Its setting is the number of key heads.
class GatedDelta : public NodeWith<int> {
 public:
  using NodeWith::NodeWith;

  bool allocate(const Arrays&, Arrays& out) override {
    return allocate_lines(out);
  }

  void encode(const Arrays& in, Arrays& out) override {
    const auto &qkv = in[0], &state = in[5];
    long rows = qkv.shape(0), tokens = qkv.shape(1), width = qkv.shape(2);
    long heads = state.shape(1), value_dim = state.shape(2), dim = state.shape(3), key_heads = settings_;
    auto type = type_of(qkv.dtype());
    // Each task begins with the norms of queries and keys: few large ones, unless threads would be idle.
    long pieces = rows * heads >= 4 * Threads::shared().count() ? 1 : 4;
    long piece = ((value_dim + pieces - 1) / pieces + 3) / 4 * 4;
    pieces = (value_dim + piece - 1) / piece;
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, kernel = kernels().recurrent[static_cast<int>(type)], to_float = kernels().choose[static_cast<int>(type)].at,
         size = static_cast<long>(qkv.itemsize()), qkv = Dense(qkv), a = Dense(in[1]), b = Dense(in[2]),
         rate = Dense(in[3]), bias = Dense(in[4]), state = Dense(state), widths = Dense(in[6]),
         y_at = out[0].data<char>(), after_at = out[1].data<float>()] {
          std::vector<char> copies[7];
          const char* x = qkv.get(copies[0]);
          const char *a_at = a.get(copies[1]), *b_at = b.get(copies[2]);
          auto rates = reinterpret_cast<const float*>(rate.get(copies[3]));
          auto biases = reinterpret_cast<const float*>(bias.get(copies[4]));
          auto before = reinterpret_cast<const float*>(state.get(copies[5]));
          auto wide = reinterpret_cast<const int32_t*>(widths.get(copies[6]));
          std::vector<float> decay(rows * tokens * heads), beta(decay.size());
          share(static_cast<uint32_t>(rows * tokens), 40.0 * rows * tokens * heads, [&](uint32_t token) {
            for (long i = token * heads, h = 0; h < heads; i++, h++) {
              float t = to_float(a_at, i) + biases[h];
              float softplus = std::max(t, 0.0f) + std::log1p(std::exp(-std::abs(t)));
              decay[i] = std::exp(-rates[h] * softplus);
              beta[i] = 1 / (1 + std::exp(-to_float(b_at, i)));
            }
          });
          share(
              static_cast<uint32_t>(rows * heads * pieces), 6.0 * rows * tokens * heads * value_dim * dim, [&](uint32_t i) {
                long head = i / pieces % heads, row = i / pieces / heads, first = i % pieces * piece;
                long real = std::clamp<long>(wide[row], 0, tokens), own = std::min(piece, value_dim - first);
                long key_head = head / (heads / key_heads), gates = row * tokens * heads + head;
                const char* of_row = x + row * tokens * width * size;
                auto at = [&](long column) { return of_row + column * size; };
                long of_state = ((row * heads + head) * value_dim + first) * dim, y_step = heads * value_dim;
                char* y = y_at + (row * tokens * y_step + head * value_dim + first) * size;
                Delta d{dim,
                        own,
                        real,
                        at(key_head * dim),
                        at((key_heads + key_head) * dim),
                        at(2 * key_heads * dim + head * value_dim + first),
                        width,
                        decay.data() + gates,
                        beta.data() + gates,
                        heads,
                        before + of_state,
                        after_at + of_state,
                        y,
                        y_step};
                kernel.delta(d, workspace(kernel.delta_size(d)));
                for (long t = real; t < tokens; t++) {
                  std::memset(y + t * y_step * size, 0, own * size);
                }
              });
        });
  }

  Arrays plain_all(const Arrays& in) override {
    return gated_delta_plainly({in[0], in[1], in[2], in[3], in[4], in[5], in[6]}, settings_, stream());
  }

  const char* name() const override {
    return "GatedDelta";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    const auto& state = in[5].shape();
    return {{in[0].shape(0), in[0].shape(1), state[1] * state[2]}, state};
  }
};

} // namespace

std::optional<Arrays> gated_delta(const DeltaInputs& in, int key_heads, mx::Stream s) {
  auto dtype = in.qkv.dtype();
  if (!is_float(dtype) || in.a.dtype() != dtype || in.b.dtype() != dtype) {
    return std::nullopt;
  }
  auto node = std::make_shared<GatedDelta>(s, key_heads);
  auto inputs = in.all();
  auto shapes = node->output_shapes(inputs);
  return mx::array::make_arrays(std::move(shapes), {dtype, mx::float32}, std::move(node), std::move(inputs));
}

} // namespace mlxrs::ops
