// Captures a lazy graph of arrays as a CUDA graph.
#pragma once

#include "driver.h"
#include "launch.h"
#include "replay.h"

namespace mlxrs::cuda {

struct Captured {
  Graph graph;
  // For each leaf that can differ between launches, the array that the captured kernels read.
  std::vector<std::optional<mx::array>> inputs;
  // The arrays that the captured kernels write the roots to.
  std::vector<mx::array> roots;
  // Outputs that share their buffer with a leaf (updates in place), sorted by node; and for each node whether it has
  // such outputs.
  std::vector<std::pair<Graph::Place, mx::array>> in_place;
  std::vector<bool> writes;
  // All other arrays whose memory the captured kernels use, and the memory that operations of MLX use while they run.
  std::vector<mx::array> kept;
  std::vector<std::shared_ptr<mx::array::Data>> temporaries;
  // The bytes of arrays that only this graph uses.
  size_t bytes = 0;
  CUgraphExec exec = nullptr;

  ~Captured() {
    if (exec != nullptr) {
      Driver::get().destroy_exec(exec);
    }
  }
};

// Most bytes of a leaf that can differ between launches. One that the caller has declared is never written in place and
// can be larger.
constexpr size_t small = 1 << 16, most_declared = 1 << 26;

// A new array without a primitive that shares the buffer of `a`.
inline mx::array value_of(const mx::array& a) {
  mx::array value(a.shape(), a.dtype(), nullptr, {});
  value.copy_shared_buffer(a);
  return value;
}

// Captures the kernels of `graph`. `differs` says for each leaf whether it can differ between launches, and `declared`
// whether the caller has declared it; it is copied at each launch, so it has to be small. Returns null on failure; then no
// kernel has run, and the arrays of the graph are unchanged. `is_failure` is true after an error, and false if only a leaf
// was too large or written in place. `overwritten` says which leaves in `differs` are written in place: their copies would
// be written instead.
std::shared_ptr<Captured> capture(
    Graph& graph, const std::vector<bool>& differs, const std::vector<bool>& declared, bool& is_failure,
    std::vector<bool>& overwritten);

} // namespace mlxrs::cuda
