// The nodes of cross entropy and its gradient.
#include "loss.h"
#include "ops/derivative.h"

namespace mlxrs::ops {
namespace {

// Clamps a target out of range, so that no memory outside of the logits is read. As in MLX, such a target is not an
// error.
long within(uint32_t target, long n) {
  return target < n ? target : n - 1;
}

class CrossEntropyVjp : public Derivative {
 public:
  CrossEntropyVjp(mx::Stream s, std::shared_ptr<Node> of) : Derivative(s, std::move(of), 1) {}

  void encode(const Arrays& in, Arrays& out) override {
    long n = in[0].shape(-1);
    dispatch(
        static_cast<uint32_t>(in[0].size() / n),
        16.0 * in[0].size(),
        [n, x = in[0].data<float>(), targets = in[1].data<uint32_t>(), dy = in[2].data<float>(),
         dx = out[0].data<float>()](uint32_t i) {
          kernels().gradients.cross_entropy_vjp(x + i * n, within(targets[i], n), dy[i], n, dx + i * n);
        });
  }

  const char* name() const override {
    return "CrossEntropyVjp";
  }
};

class CrossEntropy : public NodeWith<> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    long n = in[0].shape(-1);
    dispatch(
        static_cast<uint32_t>(out[0].size()),
        10.0 * in[0].size(),
        [n, x = in[0].data<float>(), targets = in[1].data<uint32_t>(), y = out[0].data<float>()](uint32_t i) {
          y[i] = kernels().gradients.cross_entropy(x + i * n, within(targets[i], n), n);
        });
  }

  mx::array plain(const Arrays& in) override {
    return cross_entropy_plainly(in[0], in[1], stream());
  }

  Arrays derive(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override {
    if (!has_derivative(primals, cotangents, argnums, 1)) {
      return Node::derive(primals, cotangents, argnums, outputs);
    }
    auto node = std::make_shared<CrossEntropyVjp>(stream(), std::make_shared<CrossEntropy>(stream()));
    return Derivative::make(
        std::move(node), {primals[0], primals[1], mx::contiguous(cotangents[0], false, stream())}, primals, argnums);
  }

  const char* name() const override {
    return "CrossEntropy";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[1].shape()};
  }
};

} // namespace

std::optional<mx::array> cross_entropy(const mx::array& logits, const mx::array& targets, mx::Stream s) {
  bool usual = logits.ndim() == targets.ndim() + 1 && logits.dtype() == mx::float32 && logits.shape(-1) > 0 &&
      (targets.dtype() == mx::uint32 || targets.dtype() == mx::int32);
  for (int i = 0; usual && i < static_cast<int>(targets.ndim()); i++) {
    usual = logits.shape(i) == targets.shape(i);
  }
  if (!usual) {
    return std::nullopt;
  }
  Arrays inputs{mx::contiguous(logits, false, s), mx::contiguous(mx::astype(targets, mx::uint32, s), false, s)};
  return mx::array(targets.shape(), mx::float32, std::make_shared<CrossEntropy>(s), std::move(inputs));
}

} // namespace mlxrs::ops
