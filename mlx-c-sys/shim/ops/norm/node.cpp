// The nodes of rms_norm and add_norm.
#include "norm.h"

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
class RmsNorm : public NodeWith<float, NormNode> {
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
  NormOperands operands(const Arrays& in, Arrays& out) const override {
    return {in[0], nullptr, nullptr, in.size() > 1 ? &in[1] : nullptr, nullptr, &out[0], settings_};
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
class AddRmsNorm : public NodeWith<AddNormSettings, NormNode> {
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
  NormOperands operands(const Arrays& in, Arrays& out) const override {
    auto [has_inner, has_outer, eps] = settings_;
    return {in[0], &in[1], has_inner ? &in[2] : nullptr, has_outer ? &in.back() : nullptr, &out[0], has_outer ? &out[1] : nullptr, eps};
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
};

bool fits(const std::optional<mx::array>& weight, const mx::array& x) {
  return !weight || (weight->ndim() == 1 && weight->shape(0) == x.shape(-1) && weight->dtype() == x.dtype());
}

} // namespace

std::optional<NormParts> rms_norm_node(
    const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s) {
  if (x.ndim() == 0 || !takes(s, x) || !fits(weight, x)) {
    return std::nullopt;
  }
  return NormParts{std::make_shared<RmsNorm>(s, eps), weight ? Arrays{x, *weight} : Arrays{x}};
}

std::optional<NormParts> add_norm_node(const AddNormInputs& of, mx::Stream s) {
  const auto &x = of.x, &residual = of.residual;
  bool usual = x.ndim() > 0 && takes(s, x) && residual.dtype() == x.dtype() && residual.shape() == x.shape() &&
      fits(of.inner, x) && fits(of.outer, x);
  // A traced norm is a node of its own: it keeps the sum for its derivative, which would be computed again otherwise.
  if (!usual || (of.outer && is_traced({&x, &residual, &*of.outer}))) {
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
  AddNormSettings settings{of.inner.has_value(), of.outer.has_value(), of.eps};
  return NormParts{std::make_shared<AddRmsNorm>(s, settings), std::move(inputs)};
}

std::optional<mx::array> rms_norm(
    const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s) {
  auto of = rms_norm_node(x, weight, eps, s);
  return of ? std::make_optional(mx::array(x.shape(), x.dtype(), std::move(of->node), std::move(of->inputs))) : std::nullopt;
}

std::optional<Arrays> add_norm(const AddNormInputs& given, mx::Stream s) {
  auto of = add_norm_node(given, s);
  if (!of) {
    return std::nullopt;
  }
  size_t n = given.outer ? 2 : 1;
  return mx::array::make_arrays(
      std::vector<mx::Shape>(n, given.x.shape()), std::vector<mx::Dtype>(n, given.x.dtype()), std::move(of->node), std::move(of->inputs));
}

} // namespace mlxrs::ops
