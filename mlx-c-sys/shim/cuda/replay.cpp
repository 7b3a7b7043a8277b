#include "replay.h"

#include <algorithm>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "mlx/event.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"
#include "ops/node.h"
#include "record.h"
#include "settings.h"

namespace mlxrs::cuda {

namespace {

constexpr int most_failures = 3;

// Copies arrays of equal sizes to each other, in as many kernels as it takes.
void copy_all(const std::vector<std::pair<mx::array, mx::array>>& pairs, mx::Stream s) {
  for (size_t first = 0; first < pairs.size(); first += SegmentArgs::most) {
    Launch launch(s);
    SegmentArgs args{};
    size_t count = std::min<size_t>(pairs.size() - first, SegmentArgs::most);
    for (size_t i = 0; i < count; i++) {
      auto [from, to] = pairs[first + i];
      args.of[i] = {launch.read(from), launch.write(to), static_cast<int64_t>(from.nbytes())};
    }
    launch.run("gated/gated", "segments", static_cast<unsigned>(count), 256, args);
  }
}

// Computes the roots of a captured graph.
class Replayed : public mx::Primitive {
 public:
  // The inputs are those leaves that differ each time.
  Replayed(mx::Stream s, std::shared_ptr<Captured> captured) : Primitive(s), captured_(std::move(captured)) {}

  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::logic_error("a CUDA graph runs on a GPU");
  }
  void eval_gpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    auto& encoder = mx::cu::get_command_encoder(stream());
    std::vector<std::pair<mx::array, mx::array>> fresh, results;
    size_t next = 0;
    for (auto& input : captured_->inputs) {
      if (input) {
        fresh.emplace_back(in.at(next++), *input);
      }
    }
    copy_all(fresh, stream());
    check(Driver::get().launch_graph(captured_->exec, static_cast<cudaStream_t>(encoder.stream())), "a captured step does not start");
    for (size_t i = 0; i < out.size(); i++) {
      // The host reads small results.
      if (out[i].nbytes() <= 4096) {
        out[i].set_data(host_memory(out[i].nbytes()));
      } else {
        allocate(out[i], stream());
      }
      results.emplace_back(captured_->roots[i], out[i]);
    }
    copy_all(results, stream());
    encoder.add_completed_handler([captured = captured_] {});
  }
  const char* name() const override {
    return "Replayed";
  }

 private:
  std::shared_ptr<Captured> captured_;
};

Graph::Leaf leaf_of(const mx::array& a) {
  return {a.buffer().ptr(), a.offset(), a.nbytes(), a.shape(), a.strides(), a.dtype(), a.flags().row_contiguous};
}

// Nothing for graphs that are not of this stream alone.
std::optional<Graph> graph_of(const std::vector<mx::array>& roots, mx::Stream s) {
  Graph graph;
  std::unordered_map<uintptr_t, int> nodes, leaves;
  auto is_ready = [](const mx::array& a) { return a.status() != mx::array::Status::unscheduled; };
  auto place_of = [&](const mx::array& a) -> Graph::Place {
    return is_ready(a) ? Graph::Place{-1, leaves.at(a.id())} : Graph::Place{nodes.at(a.primitive_id()), a.sibling_position()};
  };
  std::vector<std::pair<mx::array, size_t>> path;
  // Adds a leaf, or begins with a node. False if the array cannot be part of a captured graph.
  auto visit = [&](const mx::array& a) {
    if (is_ready(a)) {
      if (leaves.contains(a.id())) {
        return true;
      }
      const auto& event = a.event();
      if (a.is_tracer() || (event.valid() && event.stream() != s && !a.is_available())) {
        return false;
      }
      leaves.emplace(a.id(), static_cast<int>(graph.values.size()));
      graph.leaves.push_back(leaf_of(a));
      graph.values.push_back(a);
      return true;
    }
    if (a.is_tracer() || !a.has_primitive() || a.primitive().stream() != s) {
      return false;
    }
    if (!nodes.contains(a.primitive_id())) {
      path.emplace_back(a, 0);
    }
    return true;
  };
  for (const auto& root : roots) {
    if (!visit(root)) {
      return std::nullopt;
    }
    while (!path.empty()) {
      auto& [a, next] = path.back();
      if (next < a.inputs().size()) {
        auto input = a.inputs()[next++];
        if (!visit(input)) {
          return std::nullopt;
        }
        continue;
      }
      auto head = std::move(a);
      path.pop_back();
      if (!nodes.emplace(head.primitive_id(), static_cast<int>(graph.nodes.size())).second) {
        continue;
      }
      Graph::Node node{head.primitive_ptr(), {}, {}, {}};
      for (const auto& input : head.inputs()) {
        node.inputs.push_back(place_of(input));
      }
      for (const auto& output : head.outputs()) {
        node.shapes.push_back(output.shape());
        node.dtypes.push_back(output.dtype());
      }
      graph.nodes.push_back(std::move(node));
      graph.heads.push_back(std::move(head));
    }
  }
  for (const auto& root : roots) {
    graph.roots.push_back(place_of(root));
  }
  return graph;
}

bool is_same(const mx::Primitive& a, const mx::Primitive& b) {
  if (typeid(a) != typeid(b)) {
    return false;
  }
  auto* ours = dynamic_cast<const ops::Node*>(&a);
  return ours != nullptr ? ours->repeats(b) : a.is_equivalent(b);
}

// Whether two graphs compute the same of the same shapes.
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

} // namespace

void Replay::eval(std::vector<mx::array> roots) {
  std::unordered_set<uintptr_t> given;
  std::erase_if(roots, [&](const mx::array& a) {
    return a.status() != mx::array::Status::unscheduled || !given.insert(a.id()).second;
  });
  if (roots.empty()) {
    return;
  }
  auto s = roots[0].has_primitive() ? roots[0].primitive().stream() : mx::default_stream(mx::default_device());
  static const bool wanted = is_on("MLX_CUDA_REPLAY");
  bool usable = wanted && failures_ < most_failures && s.device == mx::Device::gpu && is_usable(s) && launches_directly();
  auto graph = usable ? graph_of(roots, s) : std::nullopt;
  if (!graph) {
    seen_.reset();
    captured_.reset();
    mx::async_eval(std::move(roots));
    return;
  }
  auto is_placed = [&] {
    const auto& leaves = captured_->graph.leaves;
    for (size_t i = 0; i < leaves.size(); i++) {
      if (!captured_->inputs[i] && !is_at(leaves[i], graph->leaves[i])) {
        return false;
      }
    }
    return true;
  };
  if (captured_ && (!is_same(captured_->graph, *graph) || !is_placed())) {
    captured_.reset();
  }
  if (!captured_ && seen_ && is_same(*seen_, *graph)) {
    bool is_failure = false;
    captured_ = capture(*graph, *seen_, is_failure);
    failures_ += is_failure;
  }
  if (captured_) {
    launch(*graph, roots);
    return;
  }
  mx::async_eval(std::move(roots));
  seen_ = std::move(graph);
  seen_->heads.clear();
  std::erase_if(seen_->values, [](const mx::array& a) { return a.nbytes() > small; });
}

void Replay::launch(Graph& graph, std::vector<mx::array>& roots) {
  std::vector<mx::array> inputs;
  for (size_t i = 0; i < captured_->inputs.size(); i++) {
    if (captured_->inputs[i]) {
      inputs.push_back(graph.values[i]);
    }
  }
  // The roots become outputs of one node.
  auto node = std::make_shared<Replayed>(graph.nodes[0].primitive->stream(), captured_);
  for (size_t i = 0; i < roots.size(); i++) {
    auto siblings = roots;
    siblings.erase(siblings.begin() + static_cast<std::ptrdiff_t>(i));
    roots[i].primitive_ptr() = node;
    roots[i].inputs() = inputs;
    roots[i].set_siblings(std::move(siblings), static_cast<uint16_t>(i));
  }
  mx::async_eval({roots[0]});
  for (auto& [place, value] : captured_->in_place) {
    auto& head = graph.heads[place.node];
    for (auto& output : head.outputs()) {
      if (output.sibling_position() == place.at) {
        output.copy_shared_buffer(value);
        output.attach_event(roots[0].event());
        output.set_status(mx::array::Status::evaluated);
      }
    }
  }
  for (auto& [place, value] : captured_->in_place) {
    graph.heads[place.node].detach();
  }
}

} // namespace mlxrs::cuda
