// The node of causal convolutions. A CPU task computes up to 2,048 channels of one token.
#include "conv.h"
#include "ops/linear/operands.h"

#ifdef MLXRS_CUDA
#include "cuda/conv.h"
#endif

namespace mlxrs::ops {
namespace {

// The setting is `silu`.
class CausalConv : public NodeWith<bool> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    constexpr long piece = conv_piece;
    long before = in[0].shape(1), tokens = y.shape(1), n = y.shape(2), count = in[1].shape(0);
    long pieces = (n + piece - 1) / piece;
    size_t size = y.itemsize();
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, conv = kernels().recurrent[static_cast<int>(type_of(y.dtype()))].conv, rows = y.shape(0), xs = Vectors(in[0]),
         taps = RowMajor(in[1]), bias = RowMajor(in[in.size() - 1]), has_bias = in.size() > 2, silu = settings_, to = y.data<char>()] {
          std::vector<char> copies[2];
          const char *weights = taps.get(copies[0]), *biases = has_bias ? bias.get(copies[1]) : nullptr;
          auto body = [&](uint32_t i) {
            long at = i / pieces, first = i % pieces * piece;
            char* work = reinterpret_cast<char*>(workspace(count * n));
            const void* x[most_taps];
            for (long j = 0; j < count; j++) {
              x[j] = xs(at / tokens * before + at % tokens + j, work + j * n * size) + first * size;
            }
            const char* own = has_bias ? biases + first * size : nullptr;
            conv(x, weights + first * size, own, count, n, std::min(piece, n - first), silu, to + (at * n + first) * size);
          };
          share(static_cast<uint32_t>(rows * tokens * pieces), 2.0 * (count + 4) * rows * tokens * n, body);
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    conv_on_cuda(in, settings_, out[0], stream());
  }
#endif

  mx::array plain(const Arrays& in) override {
    return causal_conv_plainly(in, settings_, stream());
  }

  const char* name() const override {
    return "CausalConv";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape[1] -= in[1].shape(0) - 1;
    return {shape};
  }
};

} // namespace

std::optional<mx::array> causal_conv(const Arrays& in, bool silu, mx::Stream s) {
  auto dtype = in[0].dtype();
  bool same = std::all_of(in.begin(), in.end(), [&](const mx::array& a) { return a.dtype() == dtype; });
  bool fits = s.device == mx::Device::cpu || (takes(s, in[0]) && in[0].shape(1) >= in[1].shape(0) && !is_traced({&in[1], &in.back()}));
  if (!is_float(dtype) || !same || in[1].shape(0) > most_taps || !fits) {
    return std::nullopt;
  }
  auto node = std::make_shared<CausalConv>(s, silu);
  auto shape = node->output_shapes(in)[0];
  return mx::array(std::move(shape), dtype, std::move(node), in);
}

} // namespace mlxrs::ops
