// CPU kernels in other languages as nodes of MLX's graph: a Primitive whose virtual functions are C callbacks.
#include <algorithm>
#include <atomic>

#include "mlx/backend/common/utils.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"

#include "guard.h"
#include "runtime/profile.h"

namespace {

using namespace mlxrs;
using Arrays = std::vector<mx::array>;

std::atomic<size_t> live{0};

// The callbacks and their data, shared by the node, its replays under compile, and its tasks.
class Kernel {
 public:
  Kernel(const mlxrs_kernel_vtable* vt, void* ud) : vt_(vt), ud_(ud) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  ~Kernel() {
    if (vt_ != nullptr && vt_->drop != nullptr) {
      vt_->drop(ud_);
    }
  }

  const mlxrs_kernel_vtable& vt() const {
    return *vt_;
  }
  const void* ud() const {
    return ud_;
  }
  [[noreturn]] void fail(const char* what, const char* text) const {
    std::string reason = text != nullptr && *text != '\0' ? text : "failed without a message";
    throw std::runtime_error(std::string("kernel ") + vt_->name + ": " + what + ": " + reason);
  }

 private:
  const mlxrs_kernel_vtable* vt_;
  void* ud_;
};

// A view with its own shape and strides, because the arrays may be freed before the task runs.
struct OwnedView {
  void* data;
  mx::Shape shape;
  mx::Strides strides;
  size_t size;
  mx::Dtype dtype;

  OwnedView(const mx::array& a, void* data)
      : data(data), shape(a.shape()), strides(a.strides()), size(a.size()), dtype(a.dtype()) {}

  mlxrs_view view() const {
    return {data, shape.data(), strides.data(), shape.size(), size, mlx_dtype_to_c(dtype)};
  }
};

std::vector<mlxrs_view> views_of(const std::vector<OwnedView>& owned) {
  std::vector<mlxrs_view> views;
  views.reserve(owned.size());
  for (const auto& v : owned) {
    views.push_back(v.view());
  }
  return views;
}

// A vector of arrays that a callback fills.
class Result {
 public:
  Result() = default;
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  ~Result() {
    mlx_vector_array_free(handle_);
  }
  mlx_vector_array* out() {
    return &handle_;
  }
  Arrays take(const Kernel& kernel, const char* what, size_t expected) {
    size_t n = handle_.ctx == nullptr ? 0 : mlx_vector_array_get_(handle_).size();
    if (n != expected) {
      auto text = "expected " + std::to_string(expected) + " arrays, the kernel gave " + std::to_string(n);
      kernel.fail(what, text.c_str());
    }
    return expected == 0 ? Arrays{} : std::move(mlx_vector_array_get_(handle_));
  }

 private:
  mlx_vector_array handle_{nullptr};
};

// A handle of a vector for a callback, which must not free it.
mlx_vector_array lend(const Arrays& arrays) {
  return {const_cast<Arrays*>(&arrays)};
}

class KernelPrimitive : public mx::Primitive {
 public:
  KernelPrimitive(mx::Stream stream, std::shared_ptr<Kernel> kernel, size_t outputs)
      : mx::Primitive(stream), kernel_(std::move(kernel)), outputs_(outputs) {
    live++;
  }
  ~KernelPrimitive() override {
    live--;
  }

  void eval_cpu(const Arrays& in, Arrays& out) override {
    allocate(in, out);
    std::vector<OwnedView> owned;
    owned.reserve(in.size() + out.size());
    for (const auto& a : in) {
      owned.emplace_back(a, const_cast<void*>(a.data<void>()));
    }
    for (auto& a : out) {
      owned.emplace_back(a, a.data<void>());
    }
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (const auto& a : in) {
      encoder.set_input_array(a);
    }
    for (auto& a : out) {
      encoder.set_output_array(a);
    }
    timed(stream(), name(), [&] {
      encoder.dispatch([kernel = kernel_, owned = std::move(owned), n = in.size()] {
        auto views = views_of(owned);
        char text[1024] = "";
        int rc = kernel->vt().eval(
            kernel->ud(), views.data(), n, views.data() + n, views.size() - n, text, sizeof text);
        if (rc != 0) {
          text[sizeof text - 1] = '\0';
          kernel->fail("eval", text);
        }
      });
    });
  }

  void eval_gpu(const Arrays&, Arrays&) override {
    kernel_->fail("eval", "it runs on the CPU only");
  }

  Arrays vjp(
      const Arrays& primals,
      const Arrays& cotangents,
      const std::vector<int>& argnums,
      const Arrays& outputs) override {
    if (kernel_->vt().vjp == nullptr) {
      kernel_->fail("vjp", "the kernel has no gradient");
    }
    Result result;
    int rc = kernel_->vt().vjp(
        kernel_->ud(),
        result.out(),
        lend(primals),
        lend(cotangents),
        argnums.data(),
        argnums.size(),
        lend(outputs));
    if (rc != 0) {
      fail_as_reported("vjp");
    }
    return result.take(*kernel_, "vjp", argnums.size());
  }

  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs, const std::vector<int>& axes) override {
    if (kernel_->vt().vmap == nullptr) {
      kernel_->fail("vmap", "the kernel has no batched form");
    }
    Result result;
    std::vector<int> out_axes(outputs_, 0);
    if (kernel_->vt().vmap(kernel_->ud(), result.out(), out_axes.data(), lend(inputs), axes.data()) != 0) {
      fail_as_reported("vmap");
    }
    return {result.take(*kernel_, "vmap", outputs_), std::move(out_axes)};
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    if (kernel_->vt().output_shape == nullptr) {
      kernel_->fail("output shapes", "the kernel does not know them for inputs of other shapes");
    }
    std::vector<OwnedView> owned;
    for (const auto& a : inputs) {
      owned.emplace_back(a, nullptr);
    }
    auto views = views_of(owned);
    std::vector<mx::Shape> shapes;
    for (size_t i = 0; i < outputs_; i++) {
      int32_t shape[MLXRS_MAX_NDIM];
      size_t ndim = 0;
      if (kernel_->vt().output_shape(kernel_->ud(), i, views.data(), views.size(), shape, &ndim) != 0) {
        fail_as_reported("output shapes");
      }
      shapes.push_back(shape_of(shape, ndim, 1));
    }
    return shapes;
  }

  // MLX compares nodes with the same C++ type, and all kernels have this type.
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const KernelPrimitive&>(other);
    if (kernel_ == that.kernel_) {
      return true;
    }
    const auto& vt = kernel_->vt();
    return &vt == &that.kernel_->vt() && outputs_ == that.outputs_ && vt.equivalent != nullptr &&
        vt.equivalent(kernel_->ud(), that.kernel_->ud());
  }

  const char* name() const override {
    return kernel_->vt().name;
  }

 private:
  // Copies the callback's message into the exception, because the thread's error may be cleared before the message is
  // read.
  [[noreturn]] void fail_as_reported(const char* what) const {
    const char* reported = mlxrs_error_get();
    kernel_->fail(what, reported);
  }

  void allocate(const Arrays& in, Arrays& out) const {
    int donated = kernel_->vt().donate_input;
    for (size_t i = 0; i < out.size(); i++) {
      if (i == 0 && donated >= 0 && static_cast<size_t>(donated) < in.size()) {
        const auto& source = in[donated];
        if (source.flags().row_contiguous && source.size() == out[0].size() &&
            mx::is_donatable(source, out[0])) {
          // The output may have another shape, so it gets strides and flags of its own.
          auto wide = std::count_if(out[0].shape().begin(), out[0].shape().end(), [](int n) { return n > 1; });
          out[0].copy_shared_buffer(source, out[0].strides(), {true, true, wide <= 1}, source.size());
          continue;
        }
      }
      out[i].set_data(mx::allocator::malloc(out[i].nbytes()));
    }
  }

  std::shared_ptr<Kernel> kernel_;
  size_t outputs_;
};

} // namespace

extern "C" int mlxrs_kernel_apply(
    mlx_vector_array* res,
    const mlxrs_kernel_vtable* vt,
    void* ud,
    const mlx_array* in,
    size_t nin,
    const int* const* out_shapes,
    const size_t* out_ndims,
    const mlx_dtype* out_dtypes,
    size_t nout,
    mlx_stream s) {
  return guarded([&] {
    auto kernel = std::make_shared<Kernel>(vt, ud);
    if (vt == nullptr || vt->eval == nullptr || vt->name == nullptr) {
      throw std::invalid_argument("kernel: the vtable needs a name and eval");
    }
    mx::Stream stream = mlx_stream_get_(s);
    if (stream.device != mx::Device::cpu) {
      kernel->fail("apply", "it runs on the CPU only, and the stream is not on the CPU");
    }
    if (nout == 0) {
      kernel->fail("apply", "a kernel needs at least one output");
    }
    Arrays inputs;
    inputs.reserve(nin);
    for (size_t i = 0; i < nin; i++) {
      inputs.push_back(mx::contiguous(mlx_array_get_(in[i]), false, stream));
    }
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> dtypes;
    for (size_t i = 0; i < nout; i++) {
      dtypes.push_back(dtype_of(out_dtypes[i]));
      shapes.push_back(shape_of(out_shapes[i], out_ndims[i], mx::size_of(dtypes.back())));
    }
    auto primitive = std::make_shared<KernelPrimitive>(stream, kernel, nout);
    mlx_vector_array_set_(*res, mx::array::make_arrays(std::move(shapes), dtypes, primitive, inputs));
  });
}

extern "C" size_t mlxrs_kernel_live(void) {
  return live.load();
}
