// The node of attention.
#include "plan.h"

#include "ops/store/store.h"

#ifdef MLXRS_CUDA
#include "cuda/attention.h"
#endif

namespace mlxrs::ops {
namespace {

class AttentionNode : public Node {
 public:
  AttentionNode(mx::Stream s, const AttentionOptions& options, bool sinks)
      : Node(s), options_(options), sinks_(sinks) {}

  bool allocate(const Arrays&, Arrays& out) override {
    return allocate_result(out[0]);
  }
#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    int64_t heads = y.shape(1), tokens = y.shape(2), d = y.shape(3);
    cuda::allocate_as(
        y, {heads * tokens * d, d, heads * d, 1},
        {true, heads == 1 || tokens == 1, y.size() <= 1 || (heads * d == 1 && tokens == 1)}, stream());
    auto on_cuda = is_stored(in[0].shape(3), y.shape(3), options_) ? stored_on_cuda : attention_on_cuda;
    on_cuda(in, y, options_, sinks_, stream());
  }
#endif
  void encode(const Arrays& in, Arrays& out) override {
    const auto &q = in[0], &k = in[1], &v = in[2];
    auto& y = out[0];
    int64_t d = y.shape(3);
    const auto* kernel = &attention_kernels(type_of(q.dtype()), q.shape(3), d, options_.packing.bits > 0);
    Plan p{options_, HeadRows(q), HeadRows(k), HeadRows(v), q.shape(0), q.shape(1), k.shape(1), q.shape(2), k.shape(2),
           q.shape(3), d, q.itemsize(), kernel};
    if (options_.mask == Mask::array) {
      std::copy_n(in[3].strides().begin(), 4, p.mask_strides.begin());
      p.seen = in[3].dtype() == mx::bool_ ? in[3].data<bool>() : nullptr;
      p.added = in[3].dtype() == mx::bool_ ? nullptr : in[3].data<float>();
    } else if (options_.mask == Mask::positions) {
      p.offsets = in[3].data<int32_t>();
      p.offset_step = in[3].size() > 1 ? in[3].strides(0) : 0;
    }
    if (sinks_) {
      p.sinks = in.back().data<float>();
      p.sink_step = in.back().strides(0);
    }
    p.y = y.data<char>();
    mx::cpu::get_command_encoder(stream()).dispatch([p = std::move(p)] { run(p); });
  }

  mx::array plain(const Arrays& in) override {
    bool has_array = options_.mask == Mask::array || options_.mask == Mask::positions;
    AttentionInputs of{
        in[0], in[1], in[2], has_array ? std::make_optional(in[3]) : std::nullopt,
        sinks_ ? std::make_optional(in.back()) : std::nullopt};
    return attention_plainly(of, options_, stream());
  }

  Arrays derive(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override {
    const auto &q = primals[0], &k = primals[1];
    bool usual = options_.cap == 0 && options_.packing.bits == 0 && !sinks_;
    if (!usual || !has_derivative(primals, cotangents, argnums, 3)) {
      return Node::derive(primals, cotangents, argnums, outputs);
    }
    auto options = options_;
    Arrays inputs = primals;
    if (options.mask == Mask::positions) {
      auto mask = dense_mask(q.shape(2), k.shape(2), options.layout, options.window, primals[3], stream());
      inputs[3] = mx::broadcast_to(mask, {q.shape(0), q.shape(1), q.shape(2), k.shape(2)}, stream());
      options.mask = Mask::array;
    }
    auto same = std::make_shared<AttentionNode>(stream(), options, false);
    return attention_vjp(std::move(same), options, inputs, cotangents[0], argnums);
  }

  const char* name() const override {
    return "Attention";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const AttentionNode&>(other);
    return options_ == that.options_ && sinks_ == that.sinks_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape[3] = unpacked_size(in[2], options_.packing, in[0].dtype());
    return {shape};
  }

 private:
  AttentionOptions options_;
  bool sinks_;
};

} // namespace

std::optional<mx::array> attention(const AttentionInputs& of, const AttentionOptions& options, mx::Stream s) {
  const mx::array &q = of.q, &k = of.k, &v = of.v;
  const auto &mask_or_offsets = of.mask_or_offsets, &sinks = of.sinks;
  const auto& packing = options.packing;
  auto kept_as = packing.bits > 0 ? mx::uint32 : q.dtype();
  auto is_usual = [&](const mx::array& a, mx::Dtype dtype) {
    return a.ndim() == 4 && a.dtype() == dtype && a.shape(0) == q.shape(0) && a.shape(1) > 0 && a.shape(3) > 0;
  };
  bool usual = is_float(q.dtype()) && is_usual(q, q.dtype()) && is_usual(k, kept_as) && is_usual(v, kept_as) &&
      q.shape(3) == unpacked_size(k, packing, q.dtype()) && unpacked_size(v, packing, q.dtype()) > 0 && k.shape(1) == v.shape(1) && k.shape(2) == v.shape(2) && k.shape(2) > 0 && q.shape(1) % k.shape(1) == 0;
  auto mask = options.mask;
  usual = usual && (mask != Mask::causal || k.shape(2) >= q.shape(2));
  if (usual && mask == Mask::array) {
    usual = mask_or_offsets->ndim() <= 4 && (mask_or_offsets->dtype() == mx::bool_ || is_float(mask_or_offsets->dtype()));
  } else if (usual && mask == Mask::positions) {
    usual = mask_or_offsets->dtype() == mx::int32 && mask_or_offsets->ndim() <= 1 &&
        (mask_or_offsets->size() == 1 || mask_or_offsets->size() == static_cast<size_t>(q.shape(0))) && k.shape(2) >= q.shape(2);
  }
  usual = usual && (!sinks || (sinks->ndim() == 1 && sinks->shape(0) == q.shape(1)));
#ifdef MLXRS_CUDA
  if (usual && s.device == mx::Device::gpu) {
    usual = takes(s, q) && fits_cuda(q, k, unpacked_size(v, packing, q.dtype()), options);
  }
#endif
  if (!usual) {
    return std::nullopt;
  }
  Arrays inputs;
  inputs.reserve(5);
  inputs.insert(inputs.end(), {q, k, v});
  if (mask == Mask::array) {
    auto dense = mask_or_offsets->dtype() == mx::bool_ ? *mask_or_offsets : mx::astype(*mask_or_offsets, mx::float32, s);
    inputs.push_back(mx::broadcast_to(dense, {q.shape(0), q.shape(1), q.shape(2), k.shape(2)}, s));
  } else if (mask == Mask::positions) {
    inputs.push_back(*mask_or_offsets);
  }
  if (sinks) {
    inputs.push_back(mx::astype(*sinks, mx::float32, s));
  }
  mx::Shape shape{q.shape(0), q.shape(1), q.shape(2), unpacked_size(v, packing, q.dtype())};
  auto node = std::make_shared<AttentionNode>(s, options, sinks.has_value());
  return mx::array(std::move(shape), q.dtype(), std::move(node), std::move(inputs));
}

} // namespace mlxrs::ops
