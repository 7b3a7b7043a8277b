// The node that computes the gradients of a gate: dgate and dup from gate, up and dy.
#include "gated.h"

#ifdef MLXRS_CUDA
#include "cuda/gated.h"
#endif

namespace mlxrs::ops {
namespace {

class GatedVjp : public Derivative {
 public:
  GatedVjp(mx::Stream s, std::shared_ptr<Node> of, Gate gate) : Derivative(s, std::move(of), 2), gate_(gate) {}

  void encode(const Arrays& in, Arrays& out) override {
    long n = in[0].shape(-1);
    dispatch(
        static_cast<uint32_t>(in[0].size() / n),
        16.0 * in[0].size(),
        [n, derivative = gate_ == Gate::silu ? kernels().gradients.swiglu : kernels().gradients.geglu, g = in[0].data<float>(), up = in[1].data<float>(), dy = in[2].data<float>(),
         dg = out[0].data<float>(), dup = out[1].data<float>()](uint32_t i) {
          long at = i * n;
          derivative(g + at, up + at, dy + at, n, dg + at, dup + at);
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    gated_vjp_on_cuda(static_cast<int>(gate_), in, out, stream());
  }
#endif

  const char* name() const override {
    return "GatedVjp";
  }

 private:
  Gate gate_;
};

} // namespace

Arrays gated_vjp(std::shared_ptr<Node> of, Gate gate, const Arrays& primals, const mx::array& dy,
                 const std::vector<int>& argnums) {
  auto s = of->stream();
  Arrays inputs{widened(primals[0], s), widened(primals[1], s), widened(dy, s)};
  return Derivative::make(std::make_shared<GatedVjp>(s, std::move(of), gate), std::move(inputs), primals, argnums);
}

Arrays gated_vjp_in_16_bits(std::shared_ptr<Node> of, Gate gate, const Arrays& primals, const mx::array& dy,
                            const std::vector<int>& argnums) {
  auto node = std::make_shared<GatedVjp>(of->stream(), std::move(of), gate);
  return Derivative::make(std::move(node), {primals[0], primals[1], dy}, primals, argnums);
}

} // namespace mlxrs::ops
