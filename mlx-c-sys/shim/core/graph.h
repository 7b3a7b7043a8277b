// The operations and the inputs behind lazy arrays, and whether two such graphs are the same.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mlx/array.h"
#include "mlx/primitives.h"
#include "mlx/stream.h"

namespace mlxrs {

namespace mx = mlx::core;

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

// The graph behind `roots`, or nothing if an operation is on another stream.
std::optional<Graph> graph_of(const std::vector<mx::array>& roots, mx::Stream s);

// Whether a captured run of the operation `a` can stand for `b`, if their inputs are alike.
bool is_same(const mx::Primitive& a, const mx::Primitive& b);

// Whether two graphs have the same operations, shapes and types. Buffers are not compared.
bool is_same(const Graph& a, const Graph& b);

// Whether an array fits the place of a leaf. Buffers are not compared.
bool is_like(const Graph::Leaf& leaf, const mx::array& a);

// Whether a leaf is this array or a view of the same memory.
bool is_at(const Graph::Leaf& leaf, const mx::array& a);

// Whether both arrays are numbers that the host can read, and equal.
bool is_same_number(const mx::array& a, const mx::array& b);

} // namespace mlxrs
