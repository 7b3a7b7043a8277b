// Gates and soft caps: functions of single elements.
#include <cmath>

#include "derivative.h"
#include "kernels.h"

namespace mlxrs::fused {
namespace {

class Gated : public Node {
 public:
  Gated(mx::Stream s, Gate gate) : Node(s), gate_(gate) {}

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    y.set_data(mx::allocator::malloc(y.nbytes()));
    if (y.size() == 0) {
      return;
    }
    const auto& rows = row_kernels(y.dtype());
    auto f = gate_ == Gate::silu ? rows.swiglu : rows.geglu;
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

  mx::array plain(const Arrays& in) override {
    return gated_plainly(gate_, in[0], in[1], stream());
  }

  Arrays vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override {
    if (!has_derivative(primals, cotangents, argnums, 2)) {
      return Node::vjp(primals, cotangents, argnums, outputs);
    }
    return gated_vjp(std::make_shared<Gated>(stream(), gate_), gate_, primals, cotangents[0], argnums);
  }

  const char* name() const override {
    return gate_ == Gate::silu ? "Swiglu" : "Geglu";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    return gate_ == static_cast<const Gated&>(other).gate_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[0].shape()};
  }

 private:
  Gate gate_;
};

class SoftCap : public Node {
 public:
  SoftCap(mx::Stream s, float cap) : Node(s), cap_(cap) {}

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    y.set_data(mx::allocator::malloc(y.nbytes()));
    if (y.size() == 0) {
      return;
    }
    auto f = row_kernels(y.dtype()).soft_cap;
    // A vocabulary is one long row: pieces of it.
    constexpr long piece = 4096;
    long n = y.shape(-1), pieces = (n + piece - 1) / piece;
    size_t size = y.itemsize();
    dispatch(
        static_cast<uint32_t>(y.size() / n * pieces),
        8.0 * y.size(),
        [=, cap = cap_, rows = Vectors(in[0]), to = y.data<char>()](uint32_t i) {
          long row = i / pieces, first = i % pieces * piece;
          const char* x = rows(row, workspace(n));
          f(x + first * size, cap, std::min(piece, n - first), to + (row * n + first) * size);
        });
  }

  mx::array plain(const Arrays& in) override {
    return soft_cap_plainly(in[0], cap_, stream());
  }

  const char* name() const override {
    return "SoftCap";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    return cap_ == static_cast<const SoftCap&>(other).cap_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[0].shape()};
  }

 private:
  float cap_;
};

} // namespace

std::optional<mx::array> gated(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s) {
  if (x.ndim() == 0 || x.shape() != up.shape() || x.dtype() != up.dtype() || !is_float(x.dtype())) {
    return std::nullopt;
  }
  if (auto y = gated_products(gate, x, up, s)) {
    return y;
  }
  return gated_apart(gate, x, up, s);
}

mx::array gated_apart(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s) {
  return mx::array(x.shape(), x.dtype(), std::make_shared<Gated>(s, gate), {x, up});
}

mx::array gated_plainly(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s) {
  if (gate == Gate::silu) {
    return mx::multiply(mx::multiply(x, mx::sigmoid(x, s), s), up, s);
  }
  auto number = [&](double value) { return mx::array(static_cast<float>(value), x.dtype()); };
  auto cubic = mx::multiply(mx::multiply(mx::multiply(x, x, s), x, s), number(0.044715), s);
  auto inner = mx::multiply(mx::add(x, cubic, s), number(std::sqrt(2 / 3.14159265358979)), s);
  auto half = mx::multiply(mx::add(mx::tanh(inner, s), number(1), s), number(0.5), s);
  return mx::multiply(mx::multiply(x, half, s), up, s);
}

std::optional<mx::array> soft_cap(const mx::array& x, float cap, mx::Stream s) {
  if (x.ndim() == 0 || !is_float(x.dtype())) {
    return std::nullopt;
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<SoftCap>(s, cap), {x});
}

mx::array soft_cap_plainly(const mx::array& x, float cap, mx::Stream s) {
  auto number = mx::array(cap, x.dtype());
  return mx::multiply(mx::tanh(mx::divide(x, number, s), s), number, s);
}

} // namespace mlxrs::fused
