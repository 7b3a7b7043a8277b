// A computation that is queued again and again, as the decode step of a batch is, launched as one CUDA graph.
//
// The caller builds its graph of arrays as always. If it has the same operations as the one before, with the same settings, shapes and large
// inputs, its kernels are captured once as a CUDA graph; from then on it is launched as that. Small inputs that differ each time (tokens,
// positions, keys of noise) are copied to where the captured kernels read them, and results to new arrays. So nothing has to be known of what is
// computed, and a computation that differs is simply evaluated.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlxrs::cuda {

namespace mx = mlx::core;

struct Captured;

// The operations behind some arrays.
struct Graph {
  // Where an operand comes from: an output of a node, or a leaf where `node` is -1.
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
  // An array that is computed already.
  struct Leaf {
    const void* buffer;
    int64_t offset;
    size_t bytes;
    mx::Shape shape;
    mx::Strides strides;
    mx::Dtype dtype;
    bool is_dense;
  };
  // Inputs before the nodes that read them.
  std::vector<Node> nodes;
  std::vector<Leaf> leaves;
  std::vector<Place> roots;
  // An output of each node, and the leaves.
  std::vector<mx::array> heads, values;
};

class Replay {
 public:
  // Queues the computation of the arrays, as mx::async_eval. Of the other arrays that this computes, only those that were written in place are
  // evaluated afterwards.
  void eval(std::vector<mx::array> roots);

 private:
  // The last computation that was not launched as a graph. It holds small leaves alone.
  std::optional<Graph> seen_;
  std::shared_ptr<Captured> captured_;
  // Computations that could not be captured.
  int failures_ = 0;
};

} // namespace mlxrs::cuda
