#include "replay.h"

#include <algorithm>
#include <typeinfo>
#include <unordered_set>

#include "mlx/event.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"
#include "ops/node.h"
#include "record.h"
#include "settings.h"
#include "walk.h"

namespace mlxrs::cuda {

namespace {

constexpr int most_failures = 3;

// Copies each first array to the second, of the same size. One kernel copies up to SegmentArgs::most arrays.
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

// The primitive that launches a captured graph. Its outputs are the roots of the graph.
class Replayed : public mx::Primitive {
 public:
  // The inputs are the leaves that can differ between launches.
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
      // The host reads small results (sampled tokens), so they go to pinned host memory.
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

Walk& walk() {
  thread_local Walk walk;
  return walk;
}

// The graph behind `roots`, or nothing if an operation is on another stream.
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
  auto* ours = dynamic_cast<const ops::Node*>(&a);
  return ours != nullptr ? ours->repeats(b) : a.is_equivalent(b);
}

// Whether two graphs have the same operations, shapes and types. Buffers are not compared.
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

// The arrays of a new graph that a launch of the captured one needs: the leaves that can differ, and one output of each
// node that writes in place.
struct Fresh {
  std::vector<mx::array> inputs;
  std::vector<std::pair<int, mx::array>> heads;
};

// Compares the graph behind `roots` with the captured one while it walks through it, and collects `Fresh`. Returns
// nothing at the first difference. Most steps of a batch have the same graph.
std::optional<Fresh> fresh_of(const Captured& captured, const std::vector<mx::array>& roots, mx::Stream s) {
  const auto& known = captured.graph;
  Fresh fresh;
  size_t leaves = 0, nodes = 0;
  auto leaf = [&](const mx::array& a) {
    if (leaves == known.leaves.size()) {
      return false;
    }
    const auto& like = known.leaves[leaves];
    bool is_input = captured.inputs[leaves++].has_value();
    if (is_input) {
      fresh.inputs.push_back(a);
    }
    return like.dtype == a.dtype() && like.shape == a.shape() && like.strides == a.strides() && like.is_dense == a.flags().row_contiguous &&
        (is_input || (like.buffer == a.buffer().ptr() && like.offset == a.offset()));
  };
  auto node = [&](const mx::array& head) {
    if (nodes == known.nodes.size()) {
      return false;
    }
    const auto& like = known.nodes[nodes];
    if (captured.writes[nodes]) {
      fresh.heads.emplace_back(static_cast<int>(nodes), head);
    }
    nodes++;
    const auto& inputs = head.inputs();
    bool is_like = inputs.size() == like.inputs.size() && is_same(*like.primitive, head.primitive());
    for (size_t i = 0; is_like && i < inputs.size(); i++) {
      is_like = walk().place_of(inputs[i]) == like.inputs[i];
    }
    if (head.siblings().empty()) {
      return is_like && like.shapes.size() == 1 && like.shapes[0] == head.shape() && like.dtypes[0] == head.dtype();
    }
    auto outputs = head.outputs();
    is_like = is_like && outputs.size() == like.shapes.size();
    for (size_t i = 0; is_like && i < outputs.size(); i++) {
      is_like = like.shapes[i] == outputs[i].shape() && like.dtypes[i] == outputs[i].dtype();
    }
    return is_like;
  };
  bool is_like = walk().run(roots, s, leaf, node) && leaves == known.leaves.size() && nodes == known.nodes.size() &&
      roots.size() == known.roots.size();
  for (size_t i = 0; is_like && i < roots.size(); i++) {
    is_like = walk().place_of(roots[i]) == known.roots[i];
  }
  return is_like ? std::optional(std::move(fresh)) : std::nullopt;
}

// Makes the roots the outputs of one `Replayed` primitive and queues it. Outputs of nodes that write in place are
// marked as evaluated too.
void launch(const std::shared_ptr<Captured>& captured, Fresh& fresh, std::vector<mx::array>& roots) {
  auto node = std::make_shared<Replayed>(captured->graph.nodes[0].primitive->stream(), captured);
  for (size_t i = 0; i < roots.size(); i++) {
    auto siblings = roots;
    siblings.erase(siblings.begin() + static_cast<std::ptrdiff_t>(i));
    roots[i].primitive_ptr() = node;
    roots[i].inputs() = fresh.inputs;
    roots[i].set_siblings(std::move(siblings), static_cast<uint16_t>(i));
  }
  mx::async_eval({roots[0]});
  size_t next = 0;
  for (auto& [at, head] : fresh.heads) {
    auto outputs = head.outputs();
    for (; next < captured->in_place.size() && captured->in_place[next].first.node == at; next++) {
      auto& [place, value] = captured->in_place[next];
      auto& output = outputs[place.at];
      output.copy_shared_buffer(value);
      output.attach_event(roots[0].event());
      output.set_status(mx::array::Status::evaluated);
    }
  }
  for (auto& [at, head] : fresh.heads) {
    head.detach();
  }
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
  if (usable && captured_) {
    if (auto fresh = fresh_of(*captured_, roots, s)) {
      launch(captured_, *fresh, roots);
      return;
    }
  }
  captured_.reset();
  auto graph = usable ? graph_of(roots, s) : std::nullopt;
  if (!graph) {
    seen_.reset();
    mx::async_eval(std::move(roots));
    return;
  }
  if (seen_ && is_same(*seen_, *graph)) {
    bool is_failure = false;
    captured_ = capture(*graph, *seen_, is_failure);
    failures_ += is_failure;
  }
  if (captured_) {
    Fresh fresh;
    for (size_t i = 0; i < captured_->inputs.size(); i++) {
      if (captured_->inputs[i]) {
        fresh.inputs.push_back(graph->values[i]);
      }
    }
    for (size_t i = 0; i < captured_->writes.size(); i++) {
      if (captured_->writes[i]) {
        fresh.heads.emplace_back(static_cast<int>(i), graph->heads[i]);
      }
    }
    launch(captured_, fresh, roots);
    return;
  }
  mx::async_eval(std::move(roots));
  seen_ = std::move(graph);
  seen_->heads.clear();
  std::erase_if(seen_->values, [](const mx::array& a) { return a.nbytes() > small; });
}

} // namespace mlxrs::cuda
