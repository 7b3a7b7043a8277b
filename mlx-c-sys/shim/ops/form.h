// Decides which form of an operation runs on a stream. No other code decides it.
#pragma once

#include <initializer_list>
#include <optional>

#include "mlx/array.h"
#include "mlx/stream.h"
#include "mlxrs.h"

namespace mlxrs::ops {

namespace mx = mlx::core;

// `plain`: a graph of MLX's own operations. `cpu`: one of our nodes, with kernels for each CPU instruction set. `cuda`:
// one of our nodes, with kernels for NVIDIA GPUs.
enum class Form { plain = MLXRS_FORM_PLAIN, cpu = MLXRS_FORM_CPU, cuda = MLXRS_FORM_CUDA };

// Parts of operations that can be switched off where they have no CUDA kernel; those then use the plain form. form.cpp
// switches whole operations.
struct CudaParts {
  // Writing and reading KV caches of 4 and 8 bits.
  static constexpr bool packed_caches = true;
  // Attention with heads of more than 256 elements.
  static constexpr bool wide_heads = true;
  // gated_experts: the gated product of experts as one kernel. routers: routing and the weighted sum of the experts'
  // outputs.
  static constexpr bool gated_experts = true, routers = true;
};

// The form of operation `op` on stream `s`.
Form form(mlxrs_op op, mx::Stream s);

// Runs the operation in the form of its stream. `node` returns nothing for inputs that our kernels do not support; then
// the plain form runs.
template <typename Node, typename Plain>
auto run(mlxrs_op op, mx::Stream s, const Node& node, const Plain& plain) -> decltype(plain()) {
  if (form(op, s) != Form::plain) {
    if (auto y = node()) {
      return std::move(*y);
    }
  }
  return plain();
}

// Whether a transformation (grad, vmap, compile) traces one of the arrays. Then fused operations are built of their
// parts instead: the parts have derivatives that are nodes, and keep the values that these derivatives need.
inline bool is_traced(std::initializer_list<const mx::array*> arrays) {
  for (const mx::array* a : arrays) {
    if (a->is_tracer()) {
      return true;
    }
  }
  return false;
}

} // namespace mlxrs::ops
