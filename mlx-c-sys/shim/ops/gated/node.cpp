// The nodes of gates and soft caps, which are elementwise functions.
#include "gated.h"

#ifdef MLXRS_CUDA
#include "cuda/gated.h"
#endif

namespace mlxrs::ops {
namespace {

class Gated : public NodeWith<Gate> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    const auto& rows = row_kernels(y.dtype());
    auto f = settings_ == Gate::silu ? rows.swiglu : rows.geglu;
    long n = y.shape(-1);
    size_t row = n * y.itemsize();
    dispatch(
        static_cast<uint32_t>(y.size() / n),
        8.0 * y.size(),
        [=, gates = Vectors(in[0]), ups = Vectors(in[1]), to = y.data<char>()](uint32_t i) {
          float* work = workspace(2 * n);
          f(gates(i, work), ups(i, work + n), n, to + i * row);
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    gated_on_cuda(static_cast<int>(settings_), in[0], &in[1], 0, out[0], stream());
  }
#endif

  mx::array plain(const Arrays& in) override {
    return gated_plainly(settings_, in[0], in[1], stream());
  }

  Arrays derive(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override {
    if (!has_derivative(primals, cotangents, argnums, 2)) {
      return Node::derive(primals, cotangents, argnums, outputs);
    }
    return gated_vjp(std::make_shared<Gated>(stream(), settings_), settings_, primals, cotangents[0], argnums);
  }
#ifdef MLXRS_CUDA
  Arrays derive_on_gpu(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums) override {
    auto node = std::make_shared<Gated>(stream(), settings_);
    return gated_vjp_in_16_bits(std::move(node), settings_, primals, cotangents[0], argnums);
  }
#endif

  const char* name() const override {
    return settings_ == Gate::silu ? "Swiglu" : "Geglu";
  }
};

class SoftCap : public NodeWith<float> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    auto f = row_kernels(y.dtype()).soft_cap;
    // The logits of a row are divided into pieces, because a batch can have fewer rows than there are threads.
    constexpr long piece = 4096;
    long n = y.shape(-1), pieces = (n + piece - 1) / piece;
    size_t size = y.itemsize();
    dispatch(
        static_cast<uint32_t>(y.size() / n * pieces),
        8.0 * y.size(),
        [=, cap = settings_, rows = Vectors(in[0]), to = y.data<char>()](uint32_t i) {
          long row = i / pieces, first = i % pieces * piece;
          const char* x = rows(row, workspace(n));
          f(x + first * size, cap, std::min(piece, n - first), to + (row * n + first) * size);
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    gated_on_cuda(2, in[0], nullptr, settings_, out[0], stream());
  }
#endif

  mx::array plain(const Arrays& in) override {
    return soft_cap_plainly(in[0], settings_, stream());
  }

  const char* name() const override {
    return "SoftCap";
  }
};

} // namespace

std::optional<mx::array> gated(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s) {
  // The gradients have a kernel on GPUs, too, so traced arrays are supported.
  bool usual = s.device == mx::Device::gpu ? is_16_bit(x) : takes(s, x);
  if (x.ndim() == 0 || x.shape() != up.shape() || x.dtype() != up.dtype() || !usual) {
    return std::nullopt;
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<Gated>(s, gate), {x, up});
}

std::optional<mx::array> soft_cap(const mx::array& x, float cap, mx::Stream s) {
  if (x.ndim() == 0 || !takes(s, x)) {
    return std::nullopt;
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<SoftCap>(s, cap), {x});
}

} // namespace mlxrs::ops
