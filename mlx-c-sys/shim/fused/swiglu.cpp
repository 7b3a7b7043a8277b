#include "kernels.h"
#include "node.h"

namespace mlxrs::fused {
namespace {

class Swiglu : public Node {
 public:
  using Node::Node;

  void eval_cpu(const Arrays& in, Arrays& out) override {
    out[0].set_data(mx::allocator::malloc(out[0].nbytes()));
    with_type(out[0].dtype(), [&](auto type) { run<decltype(type)>(in, out[0]); });
  }

  mx::array plain(const Arrays& in) override {
    auto silu = mx::multiply(in[0], mx::sigmoid(in[0], stream()), stream());
    return mx::multiply(silu, in[1], stream());
  }

  const char* name() const override {
    return "Swiglu";
  }
  bool is_equivalent(const mx::Primitive&) const override {
    return true;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[0].shape()};
  }

 private:
  template <typename T>
  void run(const Arrays& in, mx::array& out) {
    if (out.size() == 0) {
      return;
    }
    long n = out.shape(-1);
    dispatch(
        static_cast<uint32_t>(out.size() / n),
        8.0 * out.size(),
        [n, gate = in[0].data<T>(), up = in[1].data<T>(), gates = Rows(in[0]), ups = Rows(in[1]),
         y = out.data<T>()](uint32_t i) {
          float* work = workspace(3 * n);
          int64_t gate_step = gates.step(), up_step = ups.step();
          const float* a = floats(gate + gates(i), gate_step, n, work);
          const float* b = floats(up + ups(i), up_step, n, work + n);
          float* to = room(y + i * n, work + 2 * n);
          fused::swiglu(a, gate_step, b, up_step, n, to);
          put(to, n, y + i * n);
        });
  }
};

} // namespace

std::optional<mx::array> swiglu(const mx::array& gate, const mx::array& up, mx::Stream s) {
  if (gate.ndim() == 0 || gate.shape() != up.shape() || gate.dtype() != up.dtype() || !is_float(gate.dtype())) {
    return std::nullopt;
  }
  return mx::array(gate.shape(), gate.dtype(), std::make_shared<Swiglu>(s), {gate, up});
}

} // namespace mlxrs::fused
