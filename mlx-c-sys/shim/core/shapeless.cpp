// Graphs that are traced once and run for all shapes.
//
// MLX looks at shapes when it builds a graph, and its CPU kernels rely on that. It omits a reduction if each reduced
// axis has size 1; otherwise the kernel would read the strides of the other axes. It omits a softmax without elements;
// otherwise the kernel would divide by the size of an axis. A graph that is traced for all shapes cannot look at
// shapes. So these primitives are replaced in a traced graph by primitives that look at their inputs when they are
// evaluated.
//
// MLX's fused element-wise kernels take the larger of two sizes as the size of an axis, also of 0 and 1, which is 0. So
// where a traced graph has an array without elements (a constant, because calls with such inputs are not traced), all
// its primitives are replaced, and MLX fuses none of them.
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_map>

#include "mlx/allocator.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"

#include "guard.h"

namespace {

using namespace mlxrs;
using Arrays = std::vector<mx::array>;

// The mangled name of an MLX class ends with its own name. Most classes are not exported, so a cast to them would not
// link.
bool is_one_of(const mx::Primitive& primitive, std::initializer_list<std::string_view> names) {
  std::string_view type = typeid(primitive).name();
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    return type == "N3mlx4core" + std::to_string(name.size()) + std::string(name) + "E";
  });
}

bool is_reduction(const mx::Primitive& primitive) {
  return dynamic_cast<const mx::Reduce*>(&primitive) != nullptr;
}
// Primitives whose result is zeros if an input has no elements.
bool is_zero_of_nothing(const mx::Primitive& primitive) {
  return is_one_of(primitive, {"QuantizedMatmul", "QQMatmul", "GatherQMM", "SearchSorted"});
}
// Matrix products. MLX computes them correctly for an inner axis of size 0. Empty results are handled in products.cpp.
bool is_product(const mx::Primitive& primitive) {
  return is_one_of(primitive, {"Matmul", "AddMM", "GatherMM"});
}
// Primitives whose CPU kernels divide by sizes, or read a first element.
bool needs_elements(const mx::Primitive& primitive) {
  return is_product(primitive) || is_zero_of_nothing(primitive) ||
      is_one_of(
          primitive,
          {"Softmax", "LogSumExp", "ArgReduce", "Scan", "Sort", "ArgSort", "Partition", "ArgPartition", "MaskedScatter"});
}

class AnyShape : public mx::Primitive {
 public:
  explicit AnyShape(std::shared_ptr<mx::Primitive> inner)
      : mx::Primitive(inner->stream()), inner_(std::move(inner)) {}

  void eval_cpu(const Arrays& in, Arrays& out) override {
    if (is_reduction(*inner_)) {
      reduce(in, out);
    } else if (needs_elements(*inner_) && (out[0].size() == 0 || (!is_product(*inner_) && is_any_empty(in)))) {
      of_nothing(out);
    } else {
      inner_->eval_cpu(in, out);
    }
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
    const auto& that = *static_cast<const AnyShape&>(other).inner_;
    return typeid(*inner_) == typeid(that) && inner_->is_equivalent(that);
  }
  const char* name() const override {
    return inner_->name();
  }

 private:
  static bool is_any_empty(const Arrays& arrays) {
    return std::any_of(arrays.begin(), arrays.end(), [](const mx::array& a) { return a.size() == 0; });
  }

  void reduce(const Arrays& in, Arrays& out) {
    if (in[0].size() == 0) {
      return reduce_nothing(out[0]);
    }
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

  // MLX's kernel plans its loops from strides, which an array without elements may not have.
  void reduce_nothing(mx::array& out) {
    auto type = static_cast<mx::Reduce&>(*inner_).state().first;
    bool has_result = type != mx::Reduce::Max && type != mx::Reduce::Min;
    if (out.size() > 0 && !has_result) {
      throw std::invalid_argument(std::string(name()) + " has no result where there are no elements");
    }
    out.set_data(mx::allocator::malloc(out.nbytes()));
    mx::array identity(type == mx::Reduce::Prod || type == mx::Reduce::And ? 1 : 0, out.dtype());
    for (size_t at = 0; at < out.nbytes(); at += out.itemsize()) {
      std::memcpy(out.data<char>() + at, identity.data<char>(), out.itemsize());
    }
  }

  void of_nothing(Arrays& out) {
    for (auto& y : out) {
      if (y.size() > 0 && !is_zero_of_nothing(*inner_)) {
        throw std::invalid_argument(std::string(name()) + " has no result where an input has no elements");
      }
      y.set_data(mx::allocator::malloc(y.nbytes()));
      if (y.nbytes() > 0) {
        std::memset(y.data<char>(), 0, y.nbytes());
      }
    }
  }

  std::shared_ptr<mx::Primitive> inner_;
};

// Rebuilds a graph with those primitives replaced, or with all of them. `Arrays` are in topological order.
class Rebuilt {
 public:
  // Whether an array that was visited has no elements.
  bool has_empty() const {
    return has_empty_;
  }
  explicit Rebuilt(bool all) : all_(all) {}

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

  bool is_replaced(const mx::array& a) const {
    return all_ || is_reduction(a.primitive()) || needs_elements(a.primitive());
  }

  void make(const mx::array& a) {
    has_empty_ |= a.size() == 0;
    if (!a.has_primitive() || a.status() != mx::array::Status::unscheduled) {
      made_.insert({a.id(), a});
      return;
    }
    Arrays inputs;
    bool same = !is_replaced(a);
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
    auto primitive = is_replaced(a) ? std::make_shared<AnyShape>(a.primitive_ptr()) : a.primitive_ptr();
    auto arrays = mx::array::make_arrays(std::move(shapes), dtypes, primitive, inputs);
    for (size_t i = 0; i < outputs.size(); i++) {
      made_.insert({outputs[i].id(), arrays[i]});
    }
  }

  bool all_, has_empty_ = false;
  std::unordered_map<std::uintptr_t, mx::array> made_;
};

} // namespace

extern "C" int mlxrs_for_all_shapes(mlx_vector_array* res, mlx_vector_array outputs) {
  return guarded([&] {
    auto rebuild = [&](Rebuilt rebuilt) {
      Arrays arrays;
      for (const auto& output : mlx_vector_array_get_(outputs)) {
        arrays.push_back(rebuilt(output));
      }
      return std::pair(arrays, rebuilt.has_empty());
    };
    auto [arrays, has_empty] = rebuild(Rebuilt(false));
    if (has_empty) {
      arrays = rebuild(Rebuilt(true)).first;
    }
    mlx_vector_array_set_(*res, std::move(arrays));
  });
}
