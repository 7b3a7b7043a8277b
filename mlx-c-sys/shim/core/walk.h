// Walks through the lazy graph that computes some arrays.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "graph.h"

namespace mlxrs {

// A hash table from addresses to numbers. clear() only starts a new round, so that it neither writes nor frees memory:
// a decode step looks up some thousand addresses.
class AddressTable {
 public:
  void clear() {
    round_++;
    size_ = 0;
  }
  // -1 if the address is not in the table.
  int find(uintptr_t address) const {
    for (size_t at = first(address);; at = (at + 1) % slots_.size()) {
      const auto& slot = slots_[at];
      if (slot.round != round_) {
        return -1;
      }
      if (slot.address == address) {
        return slot.number;
      }
    }
  }
  // The address must not be in the table yet.
  void add(uintptr_t address, int number) {
    if (2 * ++size_ > slots_.size()) {
      auto old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
      for (const auto& slot : old) {
        if (slot.round == round_) {
          put(slot);
        }
      }
    }
    put({address, round_, number});
  }

 private:
  struct Slot {
    uintptr_t address = 0;
    uint64_t round = 0;
    int number = 0;
  };

  size_t first(uintptr_t address) const {
    return static_cast<size_t>((static_cast<uint64_t>(address) >> 4) * 0x9e3779b97f4a7c15u >> 32) % slots_.size();
  }
  void put(const Slot& slot) {
    size_t at = first(slot.address);
    while (slots_[at].round == round_) {
      at = (at + 1) % slots_.size();
    }
    slots_[at] = slot;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  uint64_t round_ = 1;
  size_t size_ = 0;
};

class Walk {
 public:
  // Visits the graph behind `roots` in topological order. Calls leaf(array) for each evaluated array, and node(array)
  // with one output of each operation. Returns false if a call does, or if an operation is on another stream than `s`.
  template <class Leaf, class Node>
  bool run(const std::vector<mx::array>& roots, mx::Stream s, const Leaf& leaf, const Node& node) {
    nodes_.clear();
    leaves_.clear();
    int nodes = 0, leaves = 0;
    std::vector<std::pair<mx::array, size_t>> path;
    // Visits an array: a leaf at once, a node by pushing it on the path.
    auto visit = [&](const mx::array& a) {
      if (is_ready(a)) {
        if (leaves_.find(a.id()) >= 0) {
          return true;
        }
        if (!is_readable(a, s)) {
          return false;
        }
        leaves_.add(a.id(), leaves++);
        return leaf(a);
      }
      if (a.is_tracer() || !a.has_primitive() || a.primitive().stream() != s) {
        return false;
      }
      if (nodes_.find(a.primitive_id()) < 0) {
        path.emplace_back(a, 0);
      }
      return true;
    };
    for (const auto& root : roots) {
      if (!visit(root)) {
        return false;
      }
      while (!path.empty()) {
        auto& [a, next] = path.back();
        if (next < a.inputs().size()) {
          auto input = a.inputs()[next++];
          if (!visit(input)) {
            return false;
          }
          continue;
        }
        auto head = std::move(a);
        path.pop_back();
        if (nodes_.find(head.primitive_id()) >= 0) {
          continue;
        }
        nodes_.add(head.primitive_id(), nodes++);
        if (!node(head)) {
          return false;
        }
      }
    }
    return true;
  }
  // Whether an evaluated array can be an input of operations on the stream `s`: no trace, and no wait for another stream.
  static bool is_readable(const mx::array& a, mx::Stream s) {
    const auto& event = a.event();
    return is_ready(a) && !a.is_tracer() && (!event.valid() || event.stream() == s || a.is_available());
  }
  // The leaf of an array, or -1 if this walk has not visited it as a leaf.
  int leaf_of(const mx::array& a) const {
    return is_ready(a) ? leaves_.find(a.id()) : -1;
  }
  // The place of an array that this walk has visited.
  Graph::Place place_of(const mx::array& a) const {
    return is_ready(a) ? Graph::Place{-1, leaves_.find(a.id())}
                       : Graph::Place{nodes_.find(a.primitive_id()), static_cast<int>(a.sibling_position())};
  }

 private:
  static bool is_ready(const mx::array& a) {
    return a.status() != mx::array::Status::unscheduled;
  }

  AddressTable nodes_, leaves_;
};

// The walk of this thread. It knows the places of the arrays of the graph that it walked through last.
Walk& walk();

} // namespace mlxrs
