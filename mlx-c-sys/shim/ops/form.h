// Which form of an operation runs: the only place that decides it.
#pragma once

#include <initializer_list>
#include <optional>

#include "mlx/array.h"
#include "mlx/stream.h"
#include "mlxrs.h"

namespace mlxrs::ops {

namespace mx = mlx::core;

// `plain`: a graph of MLX's own operations. `cpu`: a node of ours with a kernel for each instruction set. `cuda`: a node of ours with
// kernels for NVIDIA GPUs.
enum class Form { plain = MLXRS_FORM_PLAIN, cpu = MLXRS_FORM_CPU, cuda = MLXRS_FORM_CUDA };

// The parts of operations that have CUDA kernels of their own. `false` leaves a part to the plain form; form.cpp has whole operations.
struct CudaParts {
  // Keys and values of 4 and 8 bits, written and read.
  static constexpr bool packed_caches = true;
  // Attention with heads of more than 256 elements.
  static constexpr bool wide_heads = true;
  // A gate and the products of experts that it joins, routers, and the sums of experts' outputs.
  static constexpr bool gated_experts = true, routers = true;
};

// The form that runs on stream `s` for the operation.
Form form(mlxrs_op op, mx::Stream s);

// The operation in the form of its stream. `node` returns nothing for inputs that our kernels for the stream do not
// support; these take the plain form.
template <typename Node, typename Plain>
auto run(mlxrs_op op, mx::Stream s, const Node& node, const Plain& plain) -> decltype(plain()) {
  if (form(op, s) != Form::plain) {
    if (auto y = node()) {
      return std::move(*y);
    }
  }
  return plain();
}

// Whether a transformation (grad, vmap, compile) traces one of these. Then operations that join several are built of
// their parts, whose derivatives are nodes and keep the values that the derivatives need.
inline bool is_traced(std::initializer_list<const mx::array*> arrays) {
  for (const mx::array* a : arrays) {
    if (a->is_tracer()) {
      return true;
    }
  }
  return false;
}

} // namespace mlxrs::ops
