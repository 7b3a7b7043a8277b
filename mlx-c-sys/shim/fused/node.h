// A fused operation as a node of MLX's graph. Its transformations are those of the plain graph that MLX has for it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mlx/backend/common/utils.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"

#include "../threads.h"

namespace mlxrs::fused {

namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;

class Node : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;

  // The same result by MLX's own operations.
  virtual mx::array plain(const Arrays& inputs) = 0;

  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::runtime_error(std::string(name()) + ": this form runs on the CPU only");
  }

  Arrays vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) override {
    auto [_, all] = mx::vjp(plainly(), primals, cotangents);
    Arrays wanted;
    for (int i : argnums) {
      wanted.push_back(all[i]);
    }
    return wanted;
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
    return {mx::vmap(plainly(), axes)(inputs), {0}};
  }

 protected:
  // Runs `body(i)` for each i in [0, n) on the stream's thread; shared out when all of it is `work` multiplications
  // and that is worth it.
  template <typename Body>
  void dispatch(uint32_t n, double work, Body body) {
    mx::cpu::get_command_encoder(stream()).dispatch([n, work, body = std::move(body)] {
      if (work < 200e3) {
        for (uint32_t i = 0; i < n; i++) {
          body(i);
        }
      } else {
        Threads::shared().each(n, body);
      }
    });
  }

 private:
  std::function<Arrays(const Arrays&)> plainly() {
    return [this](const Arrays& inputs) { return Arrays{plain(inputs)}; };
  }
};

// Where the vectors along the last axis of an array are; the array may be any view.
class Rows {
 public:
  explicit Rows(const mx::array& a)
      : shape_(a.shape().begin(), a.shape().end() - 1), strides_(a.strides().begin(), a.strides().end() - 1),
        step_(a.strides().back()) {}

  // Elements from the beginning of the array to row `i`, in row-major order.
  int64_t operator()(uint32_t i) const {
    return mx::elem_to_loc(static_cast<int>(i), shape_, strides_);
  }
  // Elements from one to the next in a row.
  int64_t step() const {
    return step_;
  }

 private:
  mx::Shape shape_;
  mx::Strides strides_;
  int64_t step_;
};

// `n` elements as f32: where they are, or in `work`.
inline const float* floats(const float* x, int64_t&, long, float*) {
  return x;
}
template <typename T>
const float* floats(const T* x, int64_t& step, long n, float* work) {
  for (long i = 0; i < n; i++) {
    work[i] = static_cast<float>(x[i * step]);
  }
  step = 1;
  return work;
}

// Where a kernel may put `n` results of type T: where they belong, or in `work`, whence `put` takes them.
inline float* room(float* y, float*) {
  return y;
}
template <typename T>
float* room(T*, float* work) {
  return work;
}
inline void put(const float*, long, float*) {}
template <typename T>
void put(const float* work, long n, T* y) {
  for (long i = 0; i < n; i++) {
    y[i] = static_cast<T>(work[i]);
  }
}

// Memory of the thread for `n` floats.
inline float* workspace(size_t n) {
  thread_local std::vector<float> memory;
  if (memory.size() < n) {
    memory.resize(n);
  }
  return memory.data();
}

// Calls `f` with a value of the C++ type of a dtype of `is_float`.
template <typename F>
void with_type(mx::Dtype dtype, F f) {
  switch (dtype) {
    case mx::float32:
      return f(float{});
    case mx::float16:
      return f(mx::float16_t{});
    default:
      return f(mx::bfloat16_t{});
  }
}
inline bool is_float(mx::Dtype dtype) {
  return dtype == mx::float32 || dtype == mx::float16 || dtype == mx::bfloat16;
}

// Each gives the operation as one node, or nothing where only MLX's own will do.
std::optional<mx::array> rms_norm(
    const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s);

struct RopeOptions {
  int dims;
  bool traditional;
  std::optional<float> base;
  float scale;
};
std::optional<mx::array> rope(
    const mx::array& x,
    const RopeOptions& options,
    const mx::array& offset,
    const std::optional<mx::array>& freqs,
    mx::Stream s);

std::optional<mx::array> attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    float scale,
    const std::string& mode,
    const std::optional<mx::array>& mask,
    mx::Stream s);

std::optional<mx::array> linear(const mx::array& x, const mx::array& weight, mx::Stream s);
std::optional<mx::array> swiglu(const mx::array& gate, const mx::array& up, mx::Stream s);

} // namespace mlxrs::fused
