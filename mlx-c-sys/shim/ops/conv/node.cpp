#include "conv.h"
#include "ops/linear/operands.h"

namespace mlxrs::ops {
namespace {

constexpr int most_taps = 8;

class CausalConv : public NodeWith<> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    constexpr long piece = 2048;
    long before = in[0].shape(1), tokens = y.shape(1), n = y.shape(2), count = in[1].shape(0);
    long pieces = (n + piece - 1) / piece;
    size_t size = y.itemsize();
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, conv = kernels().recurrent[static_cast<int>(type_of(y.dtype()))].conv, rows = y.shape(0), xs = Vectors(in[0]),
         taps = Dense(in[1]), to = y.data<char>()] {
          std::vector<char> copy;
          const char* weights = taps.get(copy);
          auto body = [&](uint32_t i) {
            long at = i / pieces, first = i % pieces * piece;
            char* work = reinterpret_cast<char*>(workspace(count * n));
            const void* x[most_taps];
            for (long j = 0; j < count; j++) {
              x[j] = xs(at / tokens * before + at % tokens + j, work + j * n * size) + first * size;
            }
            conv(x, weights + first * size, count, n, std::min(piece, n - first), to + (at * n + first) * size);
          };
          share(static_cast<uint32_t>(rows * tokens * pieces), 2.0 * (count + 4) * rows * tokens * n, body);
        });
  }

  mx::array plain(const Arrays& in) override {
    return causal_conv_plainly(in[0], in[1], stream());
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

std::optional<mx::array> causal_conv(const mx::array& x, const mx::array& taps, mx::Stream s) {
  if (!is_float(x.dtype()) || taps.dtype() != x.dtype() || taps.shape(0) > most_taps) {
    return std::nullopt;
  }
  auto node = std::make_shared<CausalConv>(s);
  auto shape = node->output_shapes({x, taps})[0];
  return mx::array(std::move(shape), x.dtype(), std::move(node), {x, taps});
}

} // namespace mlxrs::ops
