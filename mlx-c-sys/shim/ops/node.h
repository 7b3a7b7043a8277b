// The base class of our nodes in MLX's graph. Transformations of a node use its plain form. The derivatives that matter
// most in training are nodes of their own (derivative.h).
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mlx/backend/common/utils.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"

#include "runtime/memory.h"
#include "runtime/profile.h"
#include "runtime/run_ahead.h"
#include "runtime/threads.h"
#include "ops/cpu/kernels.h"
#include "ops/form.h"

namespace mlxrs::ops {

using Arrays = std::vector<mx::array>;

// Calls `body(i)` for each i in [0, n), on all threads if `work` (a number of multiplications) is large enough. Must be
// called on a stream's thread.
template <typename Body>
void share(uint32_t n, double work, const Body& body) {
  auto& threads = Threads::shared();
  if (work < 20e3 || threads.count() < 2) {
    for (uint32_t i = 0; i < n; i++) {
      body(i);
    }
    return;
  }
  threads.each_several(n, 8, body);
}

class Node : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;

  // The plain form. A node overrides this (one output) or `plain_all`.
  virtual mx::array plain(const Arrays& inputs) {
    return plain_all(inputs).at(0);
  }
  virtual Arrays plain_all(const Arrays& inputs) {
    return {plain(inputs)};
  }

  // The same results from operations that are differentiated in place of this node: MLX's own operations, or smaller
  // nodes whose derivatives are nodes.
  virtual Arrays parts(const Arrays& inputs) {
    return plain_all(inputs);
  }

  // Whether a captured run of this node can stand for `other`, a node of the same class with inputs like its own. It
  // differs from `is_equivalent` for nodes that may not be merged within one graph.
  virtual bool repeats(const mx::Primitive& other) const {
    return is_equivalent(other);
  }

  // Queues the computation on the stream. The outputs have memory, and at least one of them is not empty.
  virtual void encode(const Arrays& in, Arrays& out) = 0;

  // Allocates the outputs. Returns false if there is nothing to compute; then `encode` is not called.
  virtual bool allocate(const Arrays&, Arrays& out) {
    for (auto& y : out) {
      y.set_data(mx::allocator::malloc(y.nbytes()));
    }
    return std::any_of(out.begin(), out.end(), [](const mx::array& y) { return y.size() > 0; });
  }

  void eval_cpu(const Arrays& in, Arrays& out) final {
    timed(stream(), name(), [&] {
      if (allocate(in, out)) {
        encode(in, out);
      }
    });
    size_t bytes = 0;
    for (const auto& y : out) {
      // An output that shares a buffer (an update in place) adds no memory.
      bytes += y.data_shared_ptr().use_count() > 1 ? 0 : y.nbytes();
    }
    run_ahead(stream(), bytes);
  }

  void eval_gpu(const Arrays& in, Arrays& out) final {
    encode_cuda(in, out);
  }
  // Allocates the outputs in GPU memory and launches the kernels. Nodes without CUDA kernels do not override this.
  virtual void encode_cuda(const Arrays&, Arrays&) {
    throw std::runtime_error(std::string(name()) + ": this form runs on the CPU only");
  }

  // The default is one output with the shape of the first input.
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[0].shape()};
  }

  Arrays vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) final {
    if (stream().device == mx::Device::cpu) {
      return derive(primals, cotangents, argnums, outputs);
    }
    return derive_on_gpu(primals, cotangents, argnums);
  }
  // The gradients on GPUs. Most derivatives that are nodes have CPU kernels only, so these are those of the plain form.
  virtual Arrays derive_on_gpu(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums) {
    return derive_by([this](const Arrays& all) { return plain_all(all); }, primals, cotangents, argnums);
  }
  // The gradients on the CPU.
  virtual Arrays derive(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) {
    return derive_by([this](const Arrays& all) { return parts(all); }, primals, cotangents, argnums);
  }

  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override {
    Arrays all;
    for (const auto& primal : primals) {
      all.push_back(mx::zeros_like(primal, stream()));
    }
    for (size_t i = 0; i < argnums.size(); i++) {
      all[argnums[i]] = tangents[i];
    }
    return mx::jvp(plainly(), primals, all).second;
  }

  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs, const std::vector<int>& axes) override {
    auto outputs = mx::vmap(plainly(), axes)(inputs);
    std::vector<int> out_axes(outputs.size(), 0);
    return {std::move(outputs), std::move(out_axes)};
  }

 protected:
  // Queues a loop for the stream's thread. Threads share the loop, see `share`.
  template <typename Body>
  void dispatch(uint32_t n, double work, Body body) {
    mx::cpu::get_command_encoder(stream()).dispatch([n, work, body = std::move(body)] { share(n, work, body); });
  }
  // An implementation of `allocate`: outputs of 64 KiB or more begin at a cache line.
  static bool allocate_lines(Arrays& out) {
    constexpr size_t line = 64, large = 1 << 16;
    bool any = false;
    for (auto& y : out) {
      any = any || y.size() > 0;
      if (y.nbytes() < large) {
        y.set_data(mx::allocator::malloc(y.nbytes()));
        continue;
      }
      y.set_data(mx::allocator::malloc(y.nbytes() + line));
      size_t over = reinterpret_cast<uintptr_t>(y.data<char>()) % line, offset = (line - over) % line;
      y.copy_shared_buffer(y, y.strides(), y.flags(), y.data_size(), static_cast<int64_t>(offset / y.itemsize()));
    }
    return any;
  }

 private:
  std::function<Arrays(const Arrays&)> plainly() {
    return [this](const Arrays& inputs) { return plain_all(inputs); };
  }

  // The gradients for the inputs in `argnums`. The other inputs stay constants, because they may have no derivative.
  template <typename Function>
  static Arrays derive_by(
      const Function& function, const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums) {
    Arrays some;
    for (int i : argnums) {
      some.push_back(primals[i]);
    }
    auto of_some = [&](const Arrays& some) {
      Arrays all = primals;
      for (size_t i = 0; i < argnums.size(); i++) {
        all[argnums[i]] = some[i];
      }
      return function(all);
    };
    return mx::vjp(of_some, some, cotangents).second;
  }
};

struct NoSettings {
  bool operator==(const NoSettings&) const = default;
};

// A node with settings. Compiled graphs merge nodes of the same class with equal settings and inputs.
template <class Settings = NoSettings, class Base = Node>
class NodeWith : public Base {
 public:
  NodeWith(mx::Stream s, Settings settings) : Base(s), settings_(std::move(settings)) {}
  explicit NodeWith(mx::Stream s) requires std::is_default_constructible_v<Settings>
      : Base(s), settings_{} {}

  // MLX calls this only for nodes of the same class.
  bool is_equivalent(const mx::Primitive& other) const override {
    return settings_ == static_cast<const NodeWith&>(other).settings_;
  }

 protected:
  Settings settings_;
};

// Computes the offsets of the vectors along the last axis of any strided array. A scalar is a vector of one element.
class Rows {
 public:
  explicit Rows(const mx::array& a)
      : shape_(a.shape().begin(), a.shape().end() - (a.ndim() > 0)),
        strides_(a.strides().begin(), a.strides().end() - (a.ndim() > 0)), step_(a.ndim() > 0 ? a.strides().back() : 1) {}

  // The offset of vector `i` in elements. Vectors are numbered in row-major order.
  int64_t operator()(uint32_t i) const {
    return mx::elem_to_loc(static_cast<int>(i), shape_, strides_);
  }
  // The stride of the last axis.
  int64_t step() const {
    return step_;
  }

 private:
  mx::Shape shape_;
  mx::Strides strides_;
  int64_t step_;
};

// The vectors along the last axis of an array as dense memory: in place, or copied.
class Vectors {
 public:
  explicit Vectors(const mx::array& a) : at_(a.data<char>()), n_(a.shape(-1)), size_(a.itemsize()) {
    if (!a.flags().row_contiguous) {
      rows_ = std::make_shared<const Rows>(a);
    }
  }

  // The address of vector `i`. It is copied to `work`, which must have room for one vector, if it is strided.
  const char* operator()(uint32_t i, void* work) const {
    if (in_order()) {
      return at_ + int64_t(i) * n_ * size_;
    }
    const char* from = at_ + (*rows_)(i) * size_;
    if (in_place()) {
      return from;
    }
    gather(from, rows_->step(), n_, size_, work);
    return static_cast<const char*>(work);
  }
  // Whether no vector is copied, so that `work` is not used.
  bool in_place() const {
    return in_order() || rows_->step() == 1 || n_ == 1;
  }
  // Copies vector `i` to `to`.
  void copy(uint32_t i, void* to) const {
    if (const char* from = (*this)(i, to); from != to) {
      std::memcpy(to, from, nbytes());
    }
  }
  size_t nbytes() const {
    return n_ * size_;
  }
  // Whether the array is row-contiguous.
  bool in_order() const {
    return rows_ == nullptr;
  }

  // Copies `n` elements of `size` bytes, `step` elements apart.
  static void gather(const char* from, int64_t step, long n, size_t size, void* to) {
    if (size == 4) {
      gather(reinterpret_cast<const uint32_t*>(from), step, n, static_cast<uint32_t*>(to));
    } else {
      gather(reinterpret_cast<const uint16_t*>(from), step, n, static_cast<uint16_t*>(to));
    }
  }

 private:
  template <typename T>
  static void gather(const T* from, int64_t step, long n, T* to) {
    for (long i = 0; i < n; i++) {
      to[i] = from[i * step];
    }
  }

  const char* at_;
  long n_;
  size_t size_;
  // Null if the array is row-contiguous.
  std::shared_ptr<const Rows> rows_;
};

// Memory of the calling thread for `n` floats, aligned to a cache line. The next call on this thread may return the
// same memory.
inline float* workspace(size_t n) {
  return for_node.of<float>(static_cast<long>(n));
}

// The index of the kernels for a dtype that `is_float` accepts.
inline Type type_of(mx::Dtype dtype) {
  return dtype == mx::float32 ? Type::f32 : dtype == mx::float16 ? Type::f16 : Type::bf16;
}
inline const RowKernels& row_kernels(mx::Dtype dtype) {
  return kernels().rows[static_cast<int>(type_of(dtype))];
}
inline bool is_float(mx::Dtype dtype) {
  return dtype == mx::float32 || dtype == mx::float16 || dtype == mx::bfloat16;
}
// Whether x is what kernels for GPUs read: 16-bit numbers, at least one.
inline bool is_16_bit(const mx::array& x) {
  return is_float(x.dtype()) && x.dtype() != mx::float32 && x.size() > 0;
}
// Whether the kernels of the stream support x. Traced arrays use MLX's operations, which have derivatives on GPUs.
inline bool takes(mx::Stream s, const mx::array& x) {
  return s.device == mx::Device::cpu ? is_float(x.dtype()) : is_16_bit(x) && !x.is_tracer();
}

} // namespace mlxrs::ops
