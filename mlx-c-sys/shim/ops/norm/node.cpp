// The nodes of rms_norm and add_norm.
#include "norm.h"

#ifdef MLXRS_CUDA
#include "cuda/norm.h"
#endif

namespace mlxrs::ops {
namespace {

// A weight vector for the kernels: in place, or copied to `work` if it is strided. Null without a weight.
class Weight {
 public:
  explicit Weight(const mx::array* a) {
    if (a != nullptr) {
      at_ = a->data<char>();
      n_ = a->shape(0);
      size_ = a->itemsize();
      step_ = a->strides(0);
    }
  }
  const char* operator()(float* work) const {
    if (at_ == nullptr || step_ == 1 || n_ == 1) {
      return at_;
    }
    Vectors::gather(at_, step_, n_, size_, work);
    return reinterpret_cast<const char*>(work);
  }

 private:
  const char* at_ = nullptr;
  long n_ = 0;
  size_t size_ = 0;
  int64_t step_ = 1;
};

// rms_norm. The setting is eps.
class RmsNorm : public NodeWith<float> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    long n = y.shape(-1);
    size_t row = n * y.itemsize();
    dispatch(
        static_cast<uint32_t>(y.size() / n),
        2.0 * y.size(),
        [=, norm = row_kernels(y.dtype()).rms_norm, eps = settings_, xs = Vectors(in[0]),
         weight = Weight(in.size() > 1 ? &in[1] : nullptr), to = y.data<char>()](uint32_t i) {
          float* work = workspace(2 * n);
          norm(xs(i, work), weight(work + n), eps, n, to + i * row);
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    add_norm_on_cuda({in[0], nullptr, nullptr, in.size() > 1 ? &in[1] : nullptr, nullptr, &out[0]}, settings_, stream());
  }
#endif

  mx::array plain(const Arrays& in) override {
    return rms_norm_plainly(in[0], in.size() > 1 ? std::make_optional(in[1]) : std::nullopt, settings_, stream());
  }

  Arrays derive(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override {
    if (!has_derivative(primals, cotangents, argnums, primals.size())) {
      return Node::derive(primals, cotangents, argnums, outputs);
    }
    return rms_norm_vjp(std::make_shared<RmsNorm>(stream(), settings_), settings_, primals, cotangents[0], argnums);
  }

  const char* name() const override {
    return "RmsNorm";
  }
};

struct AddNormSettings {
  bool inner, outer;
  float eps;

  bool operator==(const AddNormSettings&) const = default;
};

// add_norm. Inputs: x, residual, then the inner and the outer weight where there are any.
class AddRmsNorm : public NodeWith<AddNormSettings> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    auto [has_inner, has_outer, eps] = settings_;
    auto& sum = out[0];
    long n = sum.shape(-1);
    size_t row = n * sum.itemsize();
    dispatch(
        static_cast<uint32_t>(sum.size() / n),
        4.0 * sum.size(),
        [=, add_norm = row_kernels(sum.dtype()).add_norm, eps = eps, xs = Vectors(in[0]), residuals = Vectors(in[1]),
         inner = Weight(has_inner ? &in[2] : nullptr), outer = Weight(has_outer ? &in.back() : nullptr),
         to_sum = sum.data<char>(), to = has_outer ? out[1].data<char>() : nullptr](uint32_t i) {
          float* work = workspace(4 * n);
          AddNorm a{xs(i, work), residuals(i, work + n), inner(work + 2 * n), outer(work + 3 * n), eps,
                    to_sum + i * row, to != nullptr ? to + i * row : nullptr};
          add_norm(a, n);
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    auto [has_inner, has_outer, eps] = settings_;
    add_norm_on_cuda(
        {in[0], &in[1], has_inner ? &in[2] : nullptr, has_outer ? &in.back() : nullptr, &out[0], has_outer ? &out[1] : nullptr}, eps,
        stream());
  }
#endif

  Arrays plain_all(const Arrays& in) override {
    auto weight = [](bool given, const mx::array& a) { return given ? std::make_optional(a) : std::nullopt; };
    auto inner = weight(settings_.inner, in[settings_.inner ? 2 : 0]), outer = weight(settings_.outer, in.back());
    return add_norm_plainly({in[0], in[1], inner, outer, settings_.eps}, stream());
  }

  Arrays parts(const Arrays& in) override {
    auto norm = [&](const mx::array& x, const mx::array& weight) {
      return mx::array(x.shape(), x.dtype(), std::make_shared<RmsNorm>(stream(), settings_.eps), {x, weight});
    };
    Arrays out{mx::add(in[1], settings_.inner ? norm(in[0], in[2]) : in[0], stream())};
    if (settings_.outer) {
      out.push_back(norm(out[0], in.back()));
    }
    return out;
  }

  const char* name() const override {
    return "AddRmsNorm";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return std::vector<mx::Shape>(settings_.outer ? 2 : 1, in[0].shape());
  }
  const AddNormSettings& settings() const {
    return settings_;
  }
};

// rms_norm(sum, weight) as a second output of the node that computes `sum`, if `sum` is add_norm without an outer weight and
// is not computed yet: a layer ends with a sum, and the next layer begins with its norm. Changes the node of `sum` in
// place; its value stays the same.
std::optional<mx::array> norm_of_sum(const mx::array& sum, const mx::array& weight, float eps, mx::Stream s) {
  if (sum.status() != mx::array::Status::unscheduled || !sum.has_primitive() || sum.is_tracer() || !sum.siblings().empty()) {
    return std::nullopt;
  }
  auto* node = dynamic_cast<AddRmsNorm*>(&sum.primitive());
  if (node == nullptr || node->settings().outer || node->stream() != s || (node->settings().inner && node->settings().eps != eps)) {
    return std::nullopt;
  }
  auto both = std::make_shared<AddRmsNorm>(s, AddNormSettings{node->settings().inner, true, eps});
  auto inputs = sum.inputs();
  inputs.push_back(weight);
  mx::array first = sum, normed(sum.shape(), sum.dtype(), both, inputs);
  first.primitive_ptr() = std::move(both);
  first.inputs() = std::move(inputs);
  first.set_siblings({normed}, 0);
  normed.set_siblings({first}, 1);
  return normed;
}

bool fits(const std::optional<mx::array>& weight, const mx::array& x) {
  return !weight || (weight->ndim() == 1 && weight->shape(0) == x.shape(-1) && weight->dtype() == x.dtype());
}

} // namespace

std::optional<mx::array> rms_norm(
    const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s) {
  if (x.ndim() == 0 || !takes(s, x) || !fits(weight, x)) {
    return std::nullopt;
  }
  if (auto y = weight && !weight->is_tracer() ? norm_of_sum(x, *weight, eps, s) : std::nullopt) {
    return y;
  }
  auto inputs = weight ? Arrays{x, *weight} : Arrays{x};
  return mx::array(x.shape(), x.dtype(), std::make_shared<RmsNorm>(s, eps), std::move(inputs));
}

std::optional<Arrays> add_norm(const AddNormInputs& of, mx::Stream s) {
  const auto &x = of.x, &residual = of.residual;
  bool usual = x.ndim() > 0 && takes(s, x) && residual.dtype() == x.dtype() && residual.shape() == x.shape() &&
      fits(of.inner, x) && fits(of.outer, x);
  if (!usual) {
    return std::nullopt;
  }
  Arrays inputs;
  inputs.reserve(4);
  inputs.insert(inputs.end(), {x, residual});
  for (const auto* w : {&of.inner, &of.outer}) {
    if (*w) {
      inputs.push_back(**w);
    }
  }
  size_t n = of.outer ? 2 : 1;
  return mx::array::make_arrays(
      std::vector<mx::Shape>(n, x.shape()), std::vector<mx::Dtype>(n, x.dtype()),
      std::make_shared<AddRmsNorm>(s, AddNormSettings{of.inner.has_value(), of.outer.has_value(), of.eps}), std::move(inputs));
}

} // namespace mlxrs::ops
