// The base class of nodes that check values.
#pragma once

#include "mlx/allocator.h"
#include "mlx/backend/common/utils.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"

#include "guard.h"
#include "runtime/profile.h"
#include "runtime/run_ahead.h"

namespace mlxrs {

using Arrays = std::vector<mx::array>;

// Returns its first input if the check succeeds. A value that fails becomes 0, so that later operations stay inside
// their arrays even if they run, and the evaluation ends in an error.
class Check : public mx::Primitive {
 public:
  Check(mx::Stream s, std::string what) : mx::Primitive(s), what_(std::move(what)) {}

  void eval_cpu(const Arrays& in, Arrays& out) override {
    timed(stream(), name(), [&] {
      auto& x = out[0];
      if (in[0].flags().row_contiguous && mx::is_donatable(in[0], x)) {
        x.copy_shared_buffer(in[0]);
      } else {
        x.set_data(mx::allocator::malloc(x.nbytes()));
      }
      if (x.size() > 0) {
        encode(in, x);
      }
    });
    run_ahead(stream(), out[0].nbytes());
  }
  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::runtime_error(std::string(name()) + " runs on the CPU only");
  }
  Arrays vjp(const Arrays&, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) override {
    Arrays result;
    for (int i : argnums) {
      // The source gives only the range. The values do not depend on it, so its cotangent is 0.
      result.push_back(i == 0 ? cotangents[0] : mx::array(0.0f));
    }
    return result;
  }
  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override {
    return {argnums[0] == 0 ? tangents[0] : mx::zeros_like(primals[0], stream())};
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[0].shape()};
  }

 protected:
  virtual void encode(const Arrays& in, mx::array& x) = 0;

  std::string what_;
};

} // namespace mlxrs
