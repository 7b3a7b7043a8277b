// The capture of a computation as a CUDA graph.
#pragma once

#include "driver.h"
#include "launch.h"
#include "replay.h"

namespace mlxrs::cuda {

struct Captured {
  Graph graph;
  // For each leaf that differs each time, the array that the kernels read.
  std::vector<std::optional<mx::array>> inputs;
  // What the kernels write the roots to.
  std::vector<mx::array> roots;
  // Outputs that share memory with a leaf, by node, and whether each node has one.
  std::vector<std::pair<Graph::Place, mx::array>> in_place;
  std::vector<bool> writes;
  // All other memory that the kernels use.
  std::vector<mx::array> kept;
  CUgraphExec exec = nullptr;

  ~Captured() {
    if (exec != nullptr) {
      Driver::get().destroy_exec(exec);
    }
  }
};

// Leaves up to this size may differ each time.
constexpr size_t small = 1 << 16;

inline bool is_at(const Graph::Leaf& a, const Graph::Leaf& b) {
  return a.buffer == b.buffer && a.offset == b.offset;
}

// An array over the same memory.
inline mx::array value_of(const mx::array& a) {
  mx::array value(a.shape(), a.dtype(), nullptr, {});
  value.copy_shared_buffer(a);
  return value;
}

// Captures the kernels of a graph, whose leaves are at the places of those `before` or differ each time. Nothing where it fails: then nothing
// has run, and the arrays of the graph are as they were. `is_failure` tells whether a leaf is too large to differ (false) or there was an error.
std::shared_ptr<Captured> capture(Graph& graph, const Graph& before, bool& is_failure);

} // namespace mlxrs::cuda
