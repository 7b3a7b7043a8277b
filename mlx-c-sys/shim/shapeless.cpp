// Graphs that are traced once and run for all shapes.
//
// MLX leaves a reduction out where each reduced axis has size 1, and its CPU kernels rely on it: they read the strides of
// the axes that are left, of which there are none. A graph without shapes cannot leave it out. So a traced graph gets
// reductions that look at their input when they are evaluated.
#include <unordered_map>

#include "mlx/ops.h"
#include "mlx/primitives.h"

#include "guard.h"

namespace {

using namespace mlxrs;
using Arrays = std::vector<mx::array>;

class AnyReduce : public mx::Primitive {
 public:
  explicit AnyReduce(std::shared_ptr<mx::Primitive> inner)
      : mx::Primitive(inner->stream()), inner_(std::move(inner)) {}

  void eval_cpu(const Arrays& in, Arrays& out) override {
    for (int axis : static_cast<mx::Reduce&>(*inner_).state().second) {
      if (in[0].shape(axis) != 1) {
        return inner_->eval_cpu(in, out);
      }
    }
    if (in[0].dtype() == out[0].dtype()) {
      return out[0].copy_shared_buffer(in[0]);
    }
    // MLX's class is not exported.
    auto cast = mx::astype(mx::zeros({}, in[0].dtype(), stream()), out[0].dtype(), stream());
    cast.primitive().eval_cpu(in, out);
  }
  void eval_gpu(const Arrays& in, Arrays& out) override {
    inner_->eval_gpu(in, out);
  }
  Arrays vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
      const Arrays& outputs) override {
    return inner_->vjp(primals, cotangents, argnums, outputs);
  }
  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override {
    return inner_->jvp(primals, tangents, argnums);
  }
  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs, const std::vector<int>& axes) override {
    return inner_->vmap(inputs, axes);
  }
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return inner_->output_shapes(inputs);
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    return inner_->is_equivalent(*static_cast<const AnyReduce&>(other).inner_);
  }
  const char* name() const override {
    return inner_->name();
  }

 private:
  std::shared_ptr<mx::Primitive> inner_;
};

bool is_reduction(const mx::array& a) {
  return dynamic_cast<const mx::Reduce*>(&a.primitive()) != nullptr;
}

// The same graph with such reductions. `Arrays` are in the order of their computation.
class Rebuilt {
 public:
  mx::array operator()(const mx::array& root) {
    std::vector<mx::array> left{root};
    while (!left.empty()) {
      mx::array a = left.back();
      bool ready = true;
      if (!is_done(a) && a.has_primitive() && a.status() == mx::array::Status::unscheduled) {
        for (const auto& in : a.inputs()) {
          if (!is_done(in)) {
            left.push_back(in);
            ready = false;
          }
        }
      }
      if (ready) {
        left.pop_back();
        if (!is_done(a)) {
          make(a);
        }
      }
    }
    return made_.at(root.id());
  }

 private:
  bool is_done(const mx::array& a) const {
    return made_.contains(a.id());
  }

  void make(const mx::array& a) {
    if (!a.has_primitive() || a.status() != mx::array::Status::unscheduled) {
      made_.insert({a.id(), a});
      return;
    }
    Arrays inputs;
    bool same = !is_reduction(a);
    for (const auto& in : a.inputs()) {
      inputs.push_back(made_.at(in.id()));
      same &= inputs.back().id() == in.id();
    }
    auto outputs = const_cast<mx::array&>(a).outputs();
    if (same) {
      for (const auto& output : outputs) {
        made_.insert({output.id(), output});
      }
      return;
    }
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> dtypes;
    for (const auto& output : outputs) {
      shapes.push_back(output.shape());
      dtypes.push_back(output.dtype());
    }
    auto primitive = is_reduction(a) ? std::make_shared<AnyReduce>(a.primitive_ptr()) : a.primitive_ptr();
    auto arrays = mx::array::make_arrays(std::move(shapes), dtypes, primitive, inputs);
    for (size_t i = 0; i < outputs.size(); i++) {
      made_.insert({outputs[i].id(), arrays[i]});
    }
  }

  std::unordered_map<std::uintptr_t, mx::array> made_;
};

} // namespace

extern "C" int mlxrs_any_shape(mlx_vector_array* res, mlx_vector_array outputs) {
  return guarded([&] {
    Rebuilt rebuilt;
    Arrays arrays;
    for (const auto& output : mlx_vector_array_get_(outputs)) {
      arrays.push_back(rebuilt(output));
    }
    mlx_vector_array_set_(*res, std::move(arrays));
  });
}
