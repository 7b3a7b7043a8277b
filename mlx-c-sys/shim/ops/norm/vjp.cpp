// The node that computes the gradients of rms_norm: dx, and dweight summed over all rows.
#include <algorithm>

#include "norm.h"

namespace mlxrs::ops {
namespace {

// Calls `body(i)` for each of n chunks, on all threads if `work` (multiplications) is large enough.
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
          // dweight is summed within chunks of this constant size, so that the sum does not depend on the number of
          // threads.
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

} // namespace

Arrays rms_norm_vjp(std::shared_ptr<Node> of, float eps, const Arrays& primals, const mx::array& dy,
                    const std::vector<int>& argnums) {
  auto s = of->stream();
  Arrays inputs;
  for (const auto& primal : primals) {
    inputs.push_back(widened(primal, s));
  }
  inputs.push_back(widened(dy, s));
  auto node = std::make_shared<RmsNormVjp>(s, std::move(of), primals.size(), eps);
  return Derivative::make(std::move(node), std::move(inputs), primals, argnums);
}

} // namespace mlxrs::ops
