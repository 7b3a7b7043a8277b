#include "graph.h"

#include <algorithm>
#include <cstring>
#include <typeinfo>

#include "donate.h"
#include "mlx/distributed/primitives.h"
#include "mlx/event.h"
#include "ops/node.h"
#include "walk.h"

namespace mlxrs {
namespace {

Graph::Leaf leaf_of(const mx::array& a) {
  return {a.buffer().ptr(), a.offset(), a.nbytes(), a.shape(), a.strides(), a.dtype(), a.flags().row_contiguous};
}

} // namespace

Walk& walk() {
  thread_local Walk walk;
  return walk;
}

std::optional<Graph> graph_of(const std::vector<mx::array>& roots, mx::Stream s) {
  Graph graph;
  auto leaf = [&](const mx::array& a) {
    graph.leaves.push_back(leaf_of(a));
    graph.values.push_back(a);
    return true;
  };
  auto node = [&](const mx::array& head) {
    Graph::Node node{head.primitive_ptr(), {}, {}, {}};
    for (const auto& input : head.inputs()) {
      node.inputs.push_back(walk().place_of(input));
    }
    for (const auto& output : head.outputs()) {
      node.shapes.push_back(output.shape());
      node.dtypes.push_back(output.dtype());
    }
    graph.nodes.push_back(std::move(node));
    graph.heads.push_back(head);
    return true;
  };
  if (!walk().run(roots, s, leaf, node)) {
    return std::nullopt;
  }
  for (const auto& root : roots) {
    graph.roots.push_back(walk().place_of(root));
  }
  return graph;
}

bool is_same(const mx::Primitive& a, const mx::Primitive& b) {
  if (typeid(a) != typeid(b)) {
    return false;
  }
  if (auto* ours = dynamic_cast<const ops::Node*>(&a)) {
    return ours->repeats(b);
  }
  // Two updates of one graph must not be merged, so MLX says of none that it is like another.
  if (auto [update, at] = updates_in_place(a); update != nullptr) {
    auto [other, place] = updates_in_place(b);
    return at == place && is_same(*update, *other);
  }
  // MLX says of collectives that none is like another. The names of those that have variants ("Sum AllReduce") differ.
  if (auto* collective = dynamic_cast<const mx::distributed::DistPrimitive*>(&a)) {
    auto is_exchange = [](const char* name) { return std::strcmp(name, "Send") == 0 || std::strcmp(name, "Recv") == 0; };
    auto& other = static_cast<const mx::distributed::DistPrimitive&>(b);
    return !is_exchange(a.name()) && collective->group().raw_group() == other.group().raw_group() && std::strcmp(a.name(), b.name()) == 0;
  }
  // These have no parameters, but MLX does not compare them. libmlx does not export their types, so their names are compared.
  for (const char* name : {"Depends", "Expm1", "Log1p"}) {
    if (std::strcmp(a.name(), name) == 0) {
      return true;
    }
  }
  return a.is_equivalent(b);
}

bool is_same(const Graph& a, const Graph& b) {
  auto alike = [](const Graph::Node& a, const Graph::Node& b) {
    return a.inputs == b.inputs && a.shapes == b.shapes && a.dtypes == b.dtypes && is_same(*a.primitive, *b.primitive);
  };
  auto like = [](const Graph::Leaf& a, const Graph::Leaf& b) {
    return a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides && a.is_dense == b.is_dense;
  };
  return a.roots == b.roots && std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(), alike) &&
      std::equal(a.leaves.begin(), a.leaves.end(), b.leaves.begin(), b.leaves.end(), like);
}

bool is_like(const Graph::Leaf& leaf, const mx::array& a) {
  return leaf.dtype == a.dtype() && leaf.shape == a.shape() && leaf.strides == a.strides() && leaf.is_dense == a.flags().row_contiguous;
}

bool is_at(const Graph::Leaf& leaf, const mx::array& a) {
  return leaf.buffer == a.buffer().ptr() && leaf.offset == a.offset();
}

bool is_same_number(const mx::array& a, const mx::array& b) {
  auto is_number = [](const mx::array& a) { return a.ndim() == 0 && a.status() == mx::array::Status::available; };
  return is_number(a) && is_number(b) && a.dtype() == b.dtype() && std::memcmp(a.data<char>(), b.data<char>(), a.itemsize()) == 0;
}

} // namespace mlxrs
