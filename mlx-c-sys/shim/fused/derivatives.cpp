#include <algorithm>

#include "derivative.h"

namespace mlxrs::fused {
namespace {

// Runs `body(i)` for each of n chunks.
template <typename Body>
void each(uint32_t n, double work, Body body) {
  if (work < 200e3) {
    for (uint32_t i = 0; i < n; i++) {
      body(i);
    }
  } else {
    Threads::shared().each(n, body);
  }
}

class RmsNormVjp : public Derivative {
 public:
  RmsNormVjp(mx::Stream s, std::shared_ptr<Node> of, size_t count, float eps)
      : Derivative(s, std::move(of), count), eps_(eps) {}

  void encode(const Arrays& in, Arrays& out) override {
    allocate(out);
    bool weighted = out.size() > 1;
    if (in[0].size() == 0) {
      if (weighted) {
        std::fill_n(out[1].data<float>(), out[1].size(), 0.0f);
      }
      return;
    }
    mx::cpu::get_command_encoder(stream()).dispatch(
        [derivative = kernels().gradients.rms_norm, n = static_cast<long>(in[0].shape(-1)), rows = static_cast<long>(in[0].size() / in[0].shape(-1)), eps = eps_,
         x = in[0].data<float>(), w = weighted ? in[1].data<float>() : nullptr, dy = in.back().data<float>(),
         dx = out[0].data<float>(), dw = weighted ? out[1].data<float>() : nullptr] {
          // The weight's derivative is summed over chunks whose size depends on nothing but this number.
          constexpr long at_once = 64;
          uint32_t chunks = static_cast<uint32_t>((rows + at_once - 1) / at_once);
          std::vector<float> sums(dw != nullptr ? chunks * n : 0, 0.0f);
          each(chunks, 8.0 * rows * n, [&](uint32_t c) {
            for (long i = c * at_once; i < std::min((c + 1) * at_once, rows); i++) {
              derivative(x + i * n, w, dy + i * n, eps, n, dx + i * n, dw != nullptr ? &sums[c * n] : nullptr);
            }
          });
          if (dw != nullptr) {
            std::copy_n(sums.begin(), n, dw);
            for (uint32_t c = 1; c < chunks; c++) {
              for (long j = 0; j < n; j++) {
                dw[j] += sums[c * n + j];
              }
            }
          }
        });
  }

  const char* name() const override {
    return "RmsNormVjp";
  }

 private:
  float eps_;
};

class GatedVjp : public Derivative {
 public:
  GatedVjp(mx::Stream s, std::shared_ptr<Node> of, Gate gate) : Derivative(s, std::move(of), 2), gate_(gate) {}

  void encode(const Arrays& in, Arrays& out) override {
    allocate(out);
    if (in[0].size() == 0) {
      return;
    }
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

  const char* name() const override {
    return "GatedVjp";
  }

 private:
  Gate gate_;
};

class AttentionVjp : public Derivative {
 public:
  AttentionVjp(mx::Stream s, std::shared_ptr<Node> of, float scale, bool causal)
      : Derivative(s, std::move(of), 3), scale_(scale), causal_(causal) {}

  void encode(const Arrays& in, Arrays& out) override {
    allocate(out);
    const auto &q = in[0], &k = in[1], &v = in[2];
    if (q.size() == 0 || in.back().size() == 0) {
      for (auto& array : out) {
        std::fill_n(array.data<float>(), array.size(), 0.0f);
      }
      return;
    }
    uint32_t kv_heads = k.shape(1);
    long group = q.shape(1) / kv_heads;
    QueryHeads all{group, q.shape(2), k.shape(2), q.shape(3), v.shape(3), scale_, causal_, nullptr, nullptr, nullptr,
              nullptr, nullptr, nullptr, 0, 0, 0};
    mx::Strides mask(4, 0);
    const bool* seen = nullptr;
    const float* added = nullptr;
    if (in.size() > 4) {
      mask = in[3].strides();
      if (in[3].dtype() == mx::bool_) {
        seen = in[3].data<bool>();
      } else {
        added = in[3].data<float>();
      }
    }
    all.head_step = mask[1];
    all.query_step = mask[2];
    all.key_step = mask[3];
    dispatch(
        q.shape(0) * kv_heads,
        3.0 * q.shape(0) * q.shape(1) * all.queries * all.keys * (all.dim + all.value_dim),
        [=, q = q.data<float>(), k = k.data<float>(), v = v.data<float>(), dy = in.back().data<float>(),
         dq = out[0].data<float>(), dk = out[1].data<float>(), dv = out[2].data<float>()](uint32_t task) {
          QueryHeads a = all;
          int64_t at = task, queries = a.heads * a.queries;
          a.q = q + at * queries * a.dim;
          a.k = k + at * a.keys * a.dim;
          a.v = v + at * a.keys * a.value_dim;
          a.dy = dy + at * queries * a.value_dim;
          int64_t from = task / kv_heads * mask[0] + task % kv_heads * a.heads * mask[1];
          a.seen = seen != nullptr ? seen + from : nullptr;
          a.added = added != nullptr ? added + from : nullptr;
          kernels().gradients.attend(
              a, workspace(2 * a.keys), dq + at * queries * a.dim, dk + at * a.keys * a.dim,
              dv + at * a.keys * a.value_dim);
        });
  }

  const char* name() const override {
    return "AttentionVjp";
  }

 private:
  float scale_;
  bool causal_;
};

} // namespace

Arrays rms_norm_vjp(std::shared_ptr<Node> of, float eps, const Arrays& primals, const mx::array& dy,
                    const std::vector<int>& argnums) {
  auto s = of->stream();
  Arrays inputs;
  for (const auto& primal : primals) {
    inputs.push_back(mx::contiguous(primal, false, s));
  }
  inputs.push_back(mx::contiguous(dy, false, s));
  auto node = std::make_shared<RmsNormVjp>(s, std::move(of), primals.size(), eps);
  return Derivative::make(std::move(node), std::move(inputs), argnums);
}

Arrays gated_vjp(std::shared_ptr<Node> of, Gate gate, const Arrays& primals, const mx::array& dy,
                 const std::vector<int>& argnums) {
  auto s = of->stream();
  Arrays inputs{mx::contiguous(primals[0], false, s), mx::contiguous(primals[1], false, s), mx::contiguous(dy, false, s)};
  return Derivative::make(std::make_shared<GatedVjp>(s, std::move(of), gate), std::move(inputs), argnums);
}

Arrays attention_vjp(std::shared_ptr<Node> of, const AttentionOptions& options, const Arrays& primals,
                     const mx::array& dy, const std::vector<int>& argnums) {
  auto s = of->stream();
  Arrays inputs;
  for (int i = 0; i < 3; i++) {
    inputs.push_back(mx::contiguous(primals[i], false, s));
  }
  inputs.insert(inputs.end(), primals.begin() + 3, primals.end());
  inputs.push_back(mx::contiguous(dy, false, s));
  auto node = std::make_shared<AttentionVjp>(s, std::move(of), options.scale, options.seen == Seen::causal);
  return Derivative::make(std::move(node), std::move(inputs), argnums);
}

} // namespace mlxrs::fused
