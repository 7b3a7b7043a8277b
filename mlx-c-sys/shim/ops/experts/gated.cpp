// The gated product of experts, gate(x a^T) * (x b^T), as one node for NVIDIA GPUs.
#include "experts.h"

#ifdef MLXRS_CUDA

#include "cuda/experts.h"

namespace mlxrs::ops {
namespace {

struct GatedSettings {
  Gate gate;
  Packing packing;

  bool operator==(const GatedSettings&) const = default;
};

// Inputs: x with one row for each index, the indices, then the parts (weight, scales, biases) of stack a and of stack
// b.
class GatedExperts : public NodeWith<GatedSettings> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays&, Arrays&) override {
    throw std::logic_error("experts and their gate are one node on GPUs only");
  }
  void encode_cuda(const Arrays& in, Arrays& out) override {
    size_t size = (in.size() - 2) / 2;
    auto stack = [&](size_t i) { return std::span(in).subspan(2 + i * size, size); };
    experts_on_cuda({in[0], in[1], {stack(0), stack(1)}, settings_.packing, static_cast<int>(settings_.gate)}, out[0], stream());
  }

  mx::array plain(const Arrays& in) override {
    size_t size = (in.size() - 2) / 2;
    auto product = [&](size_t i) {
      Arrays parts(in.begin() + 2 + i * size, in.begin() + 2 + (i + 1) * size);
      return experts_plainly(in[0], Parts::of(parts, 0, settings_.packing), in[1], stream());
    };
    return gated_plainly(settings_.gate, product(0), product(1), stream());
  }

  const char* name() const override {
    return "GatedExperts";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape.back() = in[2].shape(1);
    return {shape};
  }
};

} // namespace

std::optional<mx::array> gated_experts(
    Gate gate, const mx::array& x, const std::array<Parts, 2>& ws, const mx::array& indices, mx::Stream s) {
  const auto& [a, b] = ws;
  bool alike = CudaParts::gated_experts && s.device == mx::Device::gpu && a.packing == b.packing && a.scales.has_value() == b.scales.has_value() &&
      a.weight.shape() == b.weight.shape();
  if (!alike || !experts_kind(x, a, indices, s) || !experts_kind(x, b, indices, s)) {
    return std::nullopt;
  }
  auto inputs = rows_and_indices(x, indices, s);
  for (const auto& w : ws) {
    inputs.push_back(w.weight);
    for (const auto* part : {&w.scales, &w.biases}) {
      if (*part) {
        inputs.push_back(**part);
      }
    }
  }
  auto node = std::make_shared<GatedExperts>(s, GatedSettings{gate, a.packing});
  auto shape = node->output_shapes(inputs)[0];
  return mx::array(std::move(shape), x.dtype(), std::move(node), std::move(inputs));
}

} // namespace mlxrs::ops

#else

namespace mlxrs::ops {

std::optional<mx::array> gated_experts(
    Gate, const mx::array&, const std::array<Parts, 2>&, const mx::array&, mx::Stream) {
  return std::nullopt;
}

} // namespace mlxrs::ops

#endif
