#include "mlx/fast.h"

#include "kernels.h"
#include "node.h"

namespace mlxrs::fused {
namespace {

// Matrix products over all queries would need the scores of all at once, and take longer: they compute what a mask
// hides, and the softmax goes through memory. One query at a time is also the same to the bit in any company.
class Attention : public Node {
 public:
  Attention(mx::Stream s, float scale, bool causal) : Node(s), scale_(scale), causal_(causal) {}

  void eval_cpu(const Arrays& in, Arrays& out) override {
    const auto &q = in[0], &k = in[1], &v = in[2];
    auto& y = out[0];
    y.set_data(mx::allocator::malloc(y.nbytes()));
    if (y.size() == 0) {
      return;
    }
    uint32_t heads = q.shape(1), group = heads / k.shape(1), queries = q.shape(2);
    long keys = k.shape(2), dim = q.shape(3), value_dim = v.shape(3);
    Query all{keys,         dim,     value_dim,    scale_,  nullptr, q.strides(3), nullptr, k.strides(2),
              k.strides(3), nullptr, v.strides(2), v.strides(3), nullptr, nullptr, 0};
    mx::Strides mask_strides;
    const bool* seen = nullptr;
    const float* added = nullptr;
    if (in.size() > 3) {
      mask_strides = in[3].strides();
      all.mask_step = mask_strides[3];
      if (in[3].dtype() == mx::bool_) {
        seen = in[3].data<bool>();
      } else {
        added = in[3].data<float>();
      }
    }
    dispatch(
        q.shape(0) * heads * queries,
        static_cast<double>(q.shape(0)) * heads * queries * keys * (dim + value_dim),
        [=, causal = causal_, q_at = q.data<float>(), k_at = k.data<float>(), v_at = v.data<float>(),
         q_strides = q.strides(), k_strides = k.strides(), v_strides = v.strides(), y_at = y.data<float>()](
            uint32_t task) {
          int64_t token = task % queries, head = task / queries % heads, row = task / queries / heads;
          Query one = all;
          one.q = q_at + row * q_strides[0] + head * q_strides[1] + token * q_strides[2];
          one.k = k_at + row * k_strides[0] + head / group * k_strides[1];
          one.v = v_at + row * v_strides[0] + head / group * v_strides[1];
          if (causal) {
            one.keys = keys - (queries - 1 - token);
          }
          if (!mask_strides.empty()) {
            int64_t at = row * mask_strides[0] + head * mask_strides[1] + token * mask_strides[2];
            one.seen = seen != nullptr ? seen + at : nullptr;
            one.added = added != nullptr ? added + at : nullptr;
          }
          attend(one, workspace(keys + dim), y_at + int64_t(task) * value_dim);
        });
  }

  mx::array plain(const Arrays& in) override {
    auto mask = in.size() > 3 ? std::make_optional(in[3]) : std::nullopt;
    return mx::fast::scaled_dot_product_attention(
        in[0], in[1], in[2], scale_, mask ? "array" : (causal_ ? "causal" : ""), mask, {}, false, stream());
  }

  const char* name() const override {
    return "Attention";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const Attention&>(other);
    return scale_ == that.scale_ && causal_ == that.causal_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape[3] = in[2].shape(3);
    return {shape};
  }

 private:
  float scale_;
  bool causal_;
};

} // namespace

std::optional<mx::array> attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    float scale,
    const std::string& mode,
    const std::optional<mx::array>& mask,
    mx::Stream s) {
  auto is_usual = [&](const mx::array& a) {
    return a.ndim() == 4 && a.dtype() == mx::float32 && a.shape(0) == q.shape(0);
  };
  bool usual = is_usual(q) && is_usual(k) && is_usual(v) && q.shape(3) == k.shape(3) &&
      k.shape(1) == v.shape(1) && k.shape(2) == v.shape(2) && k.shape(2) > 0 && k.shape(1) > 0 &&
      q.shape(1) % k.shape(1) == 0;
  bool causal = mode == "causal" && q.shape(2) > 1;
  usual = usual && (mode.empty() || mode == "causal" || mode == "array") && mask.has_value() == (mode == "array");
  usual = usual && (!causal || k.shape(2) >= q.shape(2));
  if (usual && mask) {
    usual = mask->ndim() <= 4 && (mask->dtype() == mx::bool_ || mask->dtype() == mx::float32);
  }
  if (!usual) {
    return std::nullopt;
  }
  mx::Shape shape{q.shape(0), q.shape(1), q.shape(2), v.shape(3)};
  Arrays inputs{q, k, v};
  if (mask) {
    inputs.push_back(mx::broadcast_to(*mask, {q.shape(0), q.shape(1), q.shape(2), k.shape(2)}, s));
  }
  return mx::array(std::move(shape), mx::float32, std::make_shared<Attention>(s, scale, causal), std::move(inputs));
}

} // namespace mlxrs::fused
