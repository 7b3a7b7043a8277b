// The node of linear attention. A CPU task computes some rows of one head's state for all tokens.
#include <cmath>

#include "delta.h"
#include "ops/linear/operands.h"

#ifdef MLXRS_CUDA
#include "cuda/delta.h"
#endif

namespace mlxrs::ops {
namespace {

float softplus(float x) {
  return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x)));
}

class LinearAttention : public NodeWith<DeltaSettings> {
 public:
  using NodeWith::NodeWith;

  bool allocate(const Arrays&, Arrays& out) override {
    return allocate_lines(out);
  }

  void encode(const Arrays& in, Arrays& out) override {
    const auto &x = in[0], &state = in[5];
    long rows = x.shape(0), tokens = x.shape(1), width = x.shape(2);
    long heads = state.shape(1), value_dim = state.shape(2), dim = state.shape(3);
    auto type = type_of(x.dtype());
    // Each task normalises queries and keys itself, so tasks are whole heads. If there are fewer than four for each
    // thread, a head is divided into four.
    long pieces = rows * heads >= 4 * Threads::shared().count() ? 1 : 4;
    long piece = ((value_dim + pieces - 1) / pieces + 3) / 4 * 4;
    pieces = (value_dim + piece - 1) / piece;
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, settings = settings_, kernel = kernels().recurrent[static_cast<int>(type)],
         to_float = kernels().choose[static_cast<int>(type)].at, size = static_cast<long>(x.itemsize()), x = RowMajor(x),
         a = RowMajor(in[1]), b = RowMajor(in[2]), rate = RowMajor(in[3]), bias = RowMajor(in[4]), state = RowMajor(state),
         widths = RowMajor(in[6]), y_at = out[0].data<char>(), after_at = out[1].data<float>()] {
          std::vector<char> copies[7];
          const char* from = x.get(copies[0]);
          const char *a_at = a.get(copies[1]), *b_at = b.get(copies[2]);
          auto rates = reinterpret_cast<const float*>(rate.get(copies[3]));
          auto biases = reinterpret_cast<const float*>(bias.get(copies[4]));
          auto before = reinterpret_cast<const float*>(state.get(copies[5]));
          auto wide = reinterpret_cast<const int32_t*>(widths.get(copies[6]));
          bool scans = settings.rule == Rule::scan;
          long of_head = settings.rule == Rule::channels ? dim : 1, of_token = heads * of_head, key_heads = settings.key_heads;
          std::vector<float> decay(rows * tokens * of_token), beta(rows * tokens * heads);
          share(static_cast<uint32_t>(rows * tokens), 40.0 * rows * tokens * of_token, [&](uint32_t token) {
            for (long i = 0; i < of_token; i++) {
              float step = softplus(to_float(a_at, token * of_token + i) + biases[i]);
              if (scans) {
                step = std::clamp(step, settings.least, settings.most);
                beta[token * heads + i] = step;
              }
              decay[token * of_token + i] = std::exp(-rates[i / of_head] * step);
            }
            for (long i = token * heads; !scans && i < (token + 1) * heads; i++) {
              beta[i] = 1 / (1 + std::exp(-to_float(b_at, i)));
            }
          });
          auto skips = reinterpret_cast<const float*>(b_at);
          share(
              static_cast<uint32_t>(rows * heads * pieces), 6.0 * rows * tokens * heads * value_dim * dim, [&](uint32_t i) {
                long head = i / pieces % heads, row = i / pieces / heads, first = i % pieces * piece;
                long real = std::clamp<long>(wide[row], 0, tokens), own = std::min(piece, value_dim - first);
                long key_head = head / (heads / key_heads), token = row * tokens;
                // The columns of x at which queries, keys and values begin.
                long keys = key_heads * dim, q = scans ? heads * value_dim + keys : 0, k = scans ? heads * value_dim : keys;
                long v = scans ? 0 : 2 * keys;
                auto at = [&](long column) { return from + (token * width + column) * size; };
                long of_state = ((row * heads + head) * value_dim + first) * dim, y_step = heads * value_dim;
                char* y = y_at + (token * y_step + head * value_dim + first) * size;
                Delta d{settings.rule,
                        dim,
                        own,
                        real,
                        at(q + key_head * dim),
                        at(k + key_head * dim),
                        at(v + head * value_dim + first),
                        width,
                        decay.data() + token * of_token + head * of_head,
                        beta.data() + token * heads + head,
                        of_token,
                        heads,
                        scans ? skips[head] : 0.0f,
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
