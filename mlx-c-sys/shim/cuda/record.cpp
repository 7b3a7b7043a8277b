#include "record.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include "core/donate.h"
#include "mlx/backend/cuda/allocator.h"
#include "mlx/distributed/primitives.h"
#include "mlx/memory.h"
#include "mlx/primitives.h"
#include "ops/node.h"
#include "report.h"

namespace mlxrs::cuda {
namespace {

// MLX's list of buffers that it frees once the queued kernels have finished. The member is private; the explicit
// instantiation below gives access.
using Temporaries = std::vector<std::shared_ptr<mx::array::Data>>;
template <auto Member>
struct TemporariesOf {
  friend Temporaries& temporaries_of(mx::cu::CommandEncoder& encoder) {
    return encoder.*Member;
  }
};
template struct TemporariesOf<&mx::cu::CommandEncoder::temporaries_>;
Temporaries& temporaries_of(mx::cu::CommandEncoder& encoder);

// Allocates an input array for each leaf that differs between launches. Returns false if such a leaf is too large to copy
// at each launch, or not dense.
bool take_inputs(
    const Graph& graph, const std::vector<bool>& differs, const std::vector<bool>& declared, Captured& captured, mx::Stream s) {
  for (size_t i = 0; i < graph.leaves.size(); i++) {
    const auto& leaf = graph.leaves[i];
    auto& input = captured.inputs.emplace_back();
    if (!differs[i]) {
      continue;
    }
    if (leaf.bytes > (declared[i] ? most_declared : small) || !leaf.is_dense) {
      return false;
    }
    input.emplace(leaf.shape, leaf.dtype, nullptr, std::vector<mx::array>{});
    // At least 16 bytes: MLX puts smaller arrays into host memory.
    allocate(*input, std::max<size_t>(input->nbytes(), 16), s);
  }
  return true;
}

// While it lives, MLX's cache keeps every buffer that is freed. Threads take turns.
class KeepFreed {
 public:
  KeepFreed() : lock_(guard()), limit_(mx::set_cache_limit(std::numeric_limits<size_t>::max())) {}
  ~KeepFreed() {
    mx::set_cache_limit(limit_);
  }
  KeepFreed(const KeepFreed&) = delete;
  KeepFreed& operator=(const KeepFreed&) = delete;

 private:
  static std::mutex& guard() {
    static std::mutex all;
    return all;
  }

  std::lock_guard<std::mutex> lock_;
  size_t limit_;
};

// Creates the state that must exist before the capture: reports, counters and buffers. Whatever a capture creates is
// initialised only when the graph runs.
void prepare(const Graph& graph, mx::Stream s) {
  // Larger results of operations of ours may be those that are written in place, such as the pools of pages.
  constexpr size_t most_own = 4 << 20;
  prepare_reports(s);
  counters(1, s);
  // MLX's own operations allocate within libmlx, and a new allocation in a capture would become a node of the graph.
  // These buffers go to MLX's cache when this function returns, and the operations find them there. There are some for our
  // operations too, which would take those of the others.
  std::vector<mx::array> some;
  for (const auto& node : graph.nodes) {
    bool is_own = dynamic_cast<ops::Node*>(node.primitive.get()) != nullptr;
    for (size_t i = 0; i < node.shapes.size(); i++) {
      mx::array like(node.shapes[i], node.dtypes[i], nullptr, std::vector<mx::array>{});
      if (!is_own || like.nbytes() <= most_own) {
        allocate(some.emplace_back(std::move(like)), s);
      }
    }
  }
}

// Keeps buffers for ever that were allocated within a graph that never runs. They have addresses but no memory behind
// them, so MLX must not give them to other arrays. If the list of allocations is unknown (null), all buffers of the
// capture are kept.
void keep_unreal(const std::vector<CUdeviceptr>* allocations, const Graph& graph, const Captured& captured) {
  static std::mutex guard;
  static auto* kept = new Temporaries;
  std::lock_guard lock(guard);
  auto is_leaf = [&](const void* buffer) {
    return std::any_of(graph.leaves.begin(), graph.leaves.end(), [&](const auto& leaf) { return leaf.buffer == buffer; });
  };
  auto take = [&](const std::shared_ptr<mx::array::Data>& data) {
    const auto* buffer = data != nullptr ? static_cast<const mx::cu::CudaBuffer*>(data->buffer().ptr()) : nullptr;
    if (buffer == nullptr || is_leaf(buffer)) {
      return;
    }
    auto at = reinterpret_cast<CUdeviceptr>(buffer->data);
    if (allocations == nullptr || std::find(allocations->begin(), allocations->end(), at) != allocations->end()) {
      kept->push_back(data);
    }
  };
  for (const auto& a : captured.kept) {
    take(a.data_shared_ptr());
  }
  for (const auto& head : graph.heads) {
    for (const auto& output : head.outputs()) {
      take(output.data_shared_ptr());
    }
  }
  for (const auto& data : captured.temporaries) {
    take(data);
  }
}

// Whether each launch of a captured graph may repeat a node. NCCL records and waits for events of its own between captured
// and other collectives.
bool is_repeatable(CUgraphNodeType type, bool has_collectives) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return true;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return has_collectives;
    default:
      return false;
  }
}

// Captures the kernels of a graph. Returns false after an error, and if the captured graph has nodes that launches cannot
// repeat, such as allocations and calls of the host.
bool record(Graph& graph, Captured& captured, mx::cu::CommandEncoder& encoder, CUgraph* recorded) {
  const auto& driver = Driver::get();
  auto stream = static_cast<CUstream>(static_cast<cudaStream_t>(encoder.stream()));
  size_t first = temporaries_of(encoder).size();
  if (driver.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS) {
    return false;
  }
  bool is_whole = true;
  bool has_collectives = false;
  try {
    Capturing capturing(captured.kept);
    for (size_t i = 0; i < graph.nodes.size(); i++) {
      auto in = graph.heads[i].inputs();
      for (size_t j = 0; j < in.size(); j++) {
        auto [node, at] = graph.nodes[i].inputs[j];
        if (node < 0 && captured.inputs[at]) {
          in[j] = *captured.inputs[at];
        }
      }
      auto out = graph.heads[i].outputs();
      graph.nodes[i].primitive->eval_gpu(in, out);
      has_collectives = has_collectives || dynamic_cast<mx::distributed::DistPrimitive*>(graph.nodes[i].primitive.get()) != nullptr;
      captured.kept.insert(captured.kept.end(), in.begin(), in.end());
      for (auto& a : out) {
        captured.kept.push_back(value_of(a));
      }
    }
  } catch (const std::exception&) {
    is_whole = false;
  }
  const auto& temporaries = temporaries_of(encoder);
  captured.temporaries.assign(temporaries.begin() + static_cast<std::ptrdiff_t>(std::min(first, temporaries.size())), temporaries.end());
  is_whole = driver.end_capture(stream, recorded) == CUDA_SUCCESS && is_whole;
  size_t count = 0;
  bool is_known = *recorded != nullptr && driver.get_nodes(*recorded, nullptr, &count) == CUDA_SUCCESS;
  std::vector<CUgraphNode> nodes(count);
  is_known = is_known && driver.get_nodes(*recorded, nodes.data(), &count) == CUDA_SUCCESS;
  std::vector<CUdeviceptr> allocations;
  for (auto node : nodes) {
    CUgraphNodeType type{};
    is_known = is_known && driver.get_type(node, &type) == CUDA_SUCCESS;
    is_whole = is_whole && is_repeatable(type, has_collectives);
    if (is_known && type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      CUDA_MEM_ALLOC_NODE_PARAMS of{};
      is_known = driver.get_allocation(node, &of) == CUDA_SUCCESS;
      allocations.push_back(of.dptr);
    }
  }
  if (!is_known || !allocations.empty()) {
    keep_unreal(is_known ? &allocations : nullptr, graph, captured);
  }
  return is_whole && is_known;
}

// Whether an output that shares its buffer with an input was written in place. Otherwise it is a view.
bool writes_in_place(const mx::Primitive& primitive) {
  return dynamic_cast<const ops::Node*>(&primitive) != nullptr || updates_in_place(primitive).first != nullptr;
}

// Finds the leaves whose copies for the captured kernels are written in place. Returns whether there are any.
bool find_overwritten(const Graph& graph, const Captured& captured, std::vector<bool>& overwritten) {
  bool is_any = false;
  for (const auto& head : graph.heads) {
    if (!writes_in_place(head.primitive())) {
      continue;
    }
    for (const auto& output : head.outputs()) {
      for (size_t leaf = 0; leaf < overwritten.size(); leaf++) {
        const auto& input = captured.inputs[leaf];
        if (input && input->buffer().ptr() == output.buffer().ptr()) {
          overwritten[leaf] = is_any = true;
        }
      }
    }
  }
  return is_any;
}

} // namespace

std::shared_ptr<Captured> capture(
    Graph& graph, const std::vector<bool>& differs, const std::vector<bool>& declared, bool& is_failure,
    std::vector<bool>& overwritten) {
  is_failure = true;
  overwritten.assign(graph.leaves.size(), false);
  auto s = graph.nodes[0].primitive->stream();
  auto captured = std::make_shared<Captured>();
  size_t before = mx::get_active_memory();
  KeepFreed keeping;
  try {
    if (!take_inputs(graph, differs, declared, *captured, s)) {
      // For example a KV cache that has grown. The next step may have the same buffers again.
      is_failure = false;
      return nullptr;
    }
    prepare(graph, s);
  } catch (const std::exception&) {
    // No memory for the inputs. The evaluation without a capture needs less and may succeed.
    return nullptr;
  }
  auto& encoder = mx::cu::get_command_encoder(s);
  encoder.commit();
  CUgraph recorded = nullptr;
  bool is_whole = record(graph, *captured, encoder, &recorded);
  const auto& driver = Driver::get();
  is_whole = is_whole && driver.instantiate(&captured->exec, recorded, 0) == CUDA_SUCCESS;
  if (recorded != nullptr) {
    driver.destroy_graph(recorded);
  }
  if (!is_whole) {
    // The capture ran no kernel, so the arrays can still be evaluated as usual.
    return nullptr;
  }
  if (find_overwritten(graph, *captured, overwritten)) {
    is_failure = false;
    return nullptr;
  }
  auto output = [&](Graph::Place place) { return graph.heads[place.node].outputs()[place.at]; };
  for (auto root : graph.roots) {
    captured->roots.push_back(value_of(output(root)));
    if (!captured->roots.back().flags().row_contiguous) {
      return nullptr;
    }
  }
  captured->writes.resize(graph.nodes.size());
  for (int i = 0; i < static_cast<int>(graph.nodes.size()); i++) {
    if (!writes_in_place(*graph.nodes[i].primitive)) {
      continue;
    }
    auto outputs = graph.heads[i].outputs();
    for (int at = 0; at < static_cast<int>(outputs.size()); at++) {
      const auto* buffer = outputs[at].buffer().ptr();
      for (size_t leaf = 0; leaf < graph.leaves.size(); leaf++) {
        if (!captured->inputs[leaf] && graph.leaves[leaf].buffer == buffer) {
          captured->in_place.emplace_back(Graph::Place{i, at}, value_of(outputs[at]));
          captured->writes[i] = true;
          break;
        }
      }
    }
  }
  size_t after = mx::get_active_memory();
  captured->bytes = after > before ? after - before : 0;
  captured->graph = graph;
  captured->graph.heads.clear();
  captured->kept.insert(captured->kept.end(), graph.values.begin(), graph.values.end());
  captured->graph.values.clear();
  is_failure = false;
  return captured;
}

} // namespace mlxrs::cuda
