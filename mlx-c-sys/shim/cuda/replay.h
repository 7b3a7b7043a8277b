// Launches a computation that repeats, such as the decode step of a batch, as one CUDA graph.
//
// The caller builds its lazy graph of arrays as usual. `Replay` compares it with the graph before. If operations,
// settings, shapes and large inputs are the same, its kernels are captured once as a CUDA graph, and later calls launch
// that graph. Small inputs that differ each time (tokens, positions, keys of random numbers) are copied to the arrays
// that the captured kernels read, and results are copied to new arrays. A graph that differs is evaluated as usual.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlxrs::cuda {

namespace mx = mlx::core;

struct Captured;

// The operations that compute some arrays.
struct Graph {
  // The source of an operand: output `at` of a node, or leaf `at` if `node` is -1.
  struct Place {
    int node, at;
    bool operator==(const Place&) const = default;
  };
  struct Node {
    std::shared_ptr<mx::Primitive> primitive;
    std::vector<Place> inputs;
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> dtypes;
  };
  // An input that is evaluated already.
  struct Leaf {
    const void* buffer;
    int64_t offset;
    size_t bytes;
    mx::Shape shape;
    mx::Strides strides;
    mx::Dtype dtype;
    bool is_dense;
  };
  // In topological order: a node comes after the nodes that it reads.
  std::vector<Node> nodes;
  std::vector<Leaf> leaves;
  std::vector<Place> roots;
  // One output array of each node, and the arrays of the leaves.
  std::vector<mx::array> heads, values;
};

class Replay {
 public:
  // Queues the evaluation of `roots`, like mx::async_eval. Intermediate arrays stay unevaluated, except those that were
  // written in place.
  void eval(std::vector<mx::array> roots);

 private:
  // The last graph that was evaluated without a capture. It keeps small leaves only.
  std::optional<Graph> seen_;
  std::shared_ptr<Captured> captured_;
  // The number of captures that ended in an error. After most_failures no further capture is tried.
  int failures_ = 0;
};

} // namespace mlxrs::cuda
