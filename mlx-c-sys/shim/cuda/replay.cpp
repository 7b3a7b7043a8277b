#include "replay.h"

#include <algorithm>
#include <unordered_set>

#include "core/donate.h"
#include "core/settings.h"
#include "core/walk.h"
#include "mlx/backend/cuda/allocator.h"
#include "mlx/event.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"
#include "record.h"
#include "report.h"
#include "runtime/outcomes.h"

namespace mlxrs::cuda {

// The arrays of a new graph that a launch of the captured one needs: the leaves that can differ, and one output of each
// node that writes in place.
struct Fresh {
  std::vector<mx::array> inputs;
  std::vector<std::pair<int, mx::array>> heads;
};

namespace {

// Graphs that are set aside: their number, and the bytes of their own arrays.
constexpr size_t most_aside = 16, most_bytes_aside = size_t{2} << 30;

// Computations between two captures of which the first has failed.
constexpr int most_pause = 1 << 10;

// In place of the leaf of a declared array that is not evaluated. That of one that the graph does not read is -1.
constexpr int unready = -2;

// A captured graph was worth its capture after this number of launches.
constexpr size_t worthy = 4;

// Copies each first array to the second, of the same size. One kernel copies up to SegmentArgs::most parts of arrays, each
// with a block of its own.
void copy_all(const std::vector<std::pair<mx::array, mx::array>>& pairs, mx::Stream s) {
  constexpr size_t most = SegmentArgs::most, part = 1 << 13;
  for (size_t next = 0, done = 0; next < pairs.size();) {
    Launch launch(s);
    SegmentArgs args{};
    size_t count = 0;
    while (next < pairs.size() && count < most) {
      auto [from, to] = pairs[next];
      const auto* source = static_cast<const char*>(launch.read(from)) + done;
      auto* target = static_cast<char*>(launch.write(to)) + done;
      size_t bytes = from.nbytes() - done;
      size_t parts = std::min((bytes + part - 1) / part, most - count);
      for (size_t i = 0; i < parts; i++, source += part, target += part) {
        size_t rest = bytes - i * part;
        args.of[count++] = {source, target, static_cast<int64_t>(std::min(rest, part))};
      }
      done += parts * part;
      if (done >= from.nbytes()) {
        next++;
        done = 0;
      }
    }
    if (count > 0) {
      launch.run("gated/gated", "segments", static_cast<unsigned>(count), 256, args);
    }
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
    note_report(captured_slot); // the captured kernels may report
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
    return is_like(like, a) && (is_input || is_at(like, a));
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
    bool is_alike = inputs.size() == like.inputs.size() && is_same(*like.primitive, head.primitive());
    for (size_t i = 0; is_alike && i < inputs.size(); i++) {
      is_alike = walk().place_of(inputs[i]) == like.inputs[i];
    }
    if (head.siblings().empty()) {
      return is_alike && like.shapes.size() == 1 && like.shapes[0] == head.shape() && like.dtypes[0] == head.dtype();
    }
    auto outputs = head.outputs();
    is_alike = is_alike && outputs.size() == like.shapes.size();
    for (size_t i = 0; is_alike && i < outputs.size(); i++) {
      is_alike = like.shapes[i] == outputs[i].shape() && like.dtypes[i] == outputs[i].dtype();
    }
    return is_alike;
  };
  bool is_alike = walk().run(roots, s, leaf, node) && leaves == known.leaves.size() && nodes == known.nodes.size() &&
      roots.size() == known.roots.size();
  for (size_t i = 0; is_alike && i < roots.size(); i++) {
    is_alike = walk().place_of(roots[i]) == known.roots[i];
  }
  return is_alike ? std::optional(std::move(fresh)) : std::nullopt;
}

// Makes the roots the outputs of one `Replayed` primitive and queues it. Outputs of nodes that write in place are
// marked as evaluated too, and returned.
std::vector<mx::array> launch(const std::shared_ptr<Captured>& captured, const Fresh& fresh, std::vector<mx::array>& roots) {
  auto node = std::make_shared<Replayed>(captured->graph.nodes[0].primitive->stream(), captured);
  for (size_t i = 0; i < roots.size(); i++) {
    auto siblings = roots;
    siblings.erase(siblings.begin() + static_cast<std::ptrdiff_t>(i));
    roots[i].primitive_ptr() = node;
    roots[i].inputs() = fresh.inputs;
    roots[i].set_siblings(std::move(siblings), static_cast<uint16_t>(i));
  }
  mx::async_eval({roots[0]});
  std::vector<mx::array> written;
  size_t next = 0;
  for (auto& [at, head] : fresh.heads) {
    auto outputs = head.outputs();
    for (; next < captured->in_place.size() && captured->in_place[next].first.node == at; next++) {
      auto& [place, value] = captured->in_place[next];
      auto& output = written.emplace_back(outputs[place.at]);
      output.copy_shared_buffer(value);
      output.attach_event(roots[0].event());
      output.set_status(mx::array::Status::evaluated);
      share_outcome(roots[0], output);
    }
  }
  for (const auto& [at, head] : fresh.heads) {
    mx::array(head).detach();
  }
  return written;
}

} // namespace

void Replay::eval(std::vector<mx::array> roots, const std::vector<mx::array>& declared) {
  auto before = std::exchange(last_, std::nullopt);
  size_t given_roots = roots.size();
  std::unordered_set<uintptr_t> given;
  std::erase_if(roots, [&](const mx::array& a) {
    return a.status() != mx::array::Status::unscheduled || !given.insert(a.id()).second;
  });
  if (roots.empty()) {
    return;
  }
  auto s = roots[0].has_primitive() ? roots[0].primitive().stream() : mx::default_stream(mx::default_device());
  static const bool wanted = is_on("MLX_CUDA_REPLAY");
  bool usable = wanted && s.device == mx::Device::gpu && is_usable(s) && launches_directly();
  // Queues a launch of the captured graph in place of the graph that was walked last.
  auto replay = [&](Fresh fresh) {
    std::vector<int> leaves;
    for (const auto& a : declared) {
      leaves.push_back(a.status() == mx::array::Status::unscheduled ? unready : walk().leaf_of(a));
    }
    auto written = launch(captured_, fresh, roots);
    launches_++;
    if (roots.size() == given_roots && varies_only_at(leaves, fresh.inputs, before)) {
      last_ = Launched{std::move(leaves), std::move(fresh.inputs), std::move(written), true};
    } else {
      last_ = Launched{{}, std::move(fresh.inputs), {}, false};
    }
  };
  if (usable && captured_) {
    if (auto fresh = fresh_of(*captured_, roots, s)) {
      replay(std::move(*fresh));
      return;
    }
  }
  if (usable) {
    if (auto fresh = take_back(roots, s)) {
      before.reset();
      replay(std::move(*fresh));
      return;
    }
  }
  set_aside();
  before.reset();
  auto graph = usable ? graph_of(roots, s) : std::nullopt;
  if (!graph) {
    seen_.reset();
    mx::async_eval(std::move(roots));
    return;
  }
  if (auto inputs = wait_ > 0 ? std::nullopt : inputs_of(*graph)) {
    std::vector<bool> is_declared(inputs->size());
    for (const auto& a : declared) {
      if (int leaf = walk().leaf_of(a); leaf >= 0) {
        is_declared[leaf] = true;
        // `seen_` does not keep a large one, so another may have its address.
        (*inputs)[leaf] = (*inputs)[leaf] || graph->leaves[leaf].bytes > small;
      }
    }
    // A later batch of the same shape can launch this graph too, but has other small arrays of the host.
    for (size_t i = 0; i < inputs->size(); i++) {
      const auto& leaf = graph->leaves[i];
      bool is_small = leaf.bytes > 0 && leaf.bytes <= small && leaf.is_dense && !leaf.shape.empty();
      // A GPU's result can be in the memory of such an array that was freed. One that is written in place is no input.
      is_small = is_small && !is_updated(graph->values[i]);
      (*inputs)[i] = (*inputs)[i] || (is_small && static_cast<const mx::cu::CudaBuffer*>(leaf.buffer)->device < 0);
    }
    bool is_failure = false;
    std::vector<bool> overwritten;
    captured_ = capture(*graph, *inputs, is_declared, is_failure, overwritten);
    if (std::find(overwritten.begin(), overwritten.end(), true) != overwritten.end()) {
      for (size_t i = 0; i < inputs->size(); i++) {
        (*inputs)[i] = (*inputs)[i] && !overwritten[i];
      }
      captured_ = capture(*graph, *inputs, is_declared, is_failure, overwritten);
    }
    pause_ = is_failure ? std::clamp(2 * pause_, 2, most_pause) : 0;
    wait_ = pause_;
  } else {
    wait_ = std::max(wait_ - 1, 0);
  }
  if (captured_) {
    seen_.reset();
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
    replay(std::move(fresh));
    return;
  }
  mx::async_eval(std::move(roots));
  seen_ = std::move(graph);
  seen_->heads.clear();
  std::erase_if(seen_->values, [](const mx::array& a) { return a.nbytes() > small; });
}

void Replay::set_aside() {
  if (captured_) {
    usual_.reset();
    if (launches_ >= worthy) {
      auto& usual = usual_.emplace(Usual{captured_->graph.nodes.size(), {}});
      for (const auto& input : captured_->inputs) {
        usual.inputs.push_back(input.has_value());
      }
      aside_.push_back(std::move(captured_));
    }
  }
  captured_.reset();
  launches_ = 0;
  size_t bytes = 0, kept = 0;
  for (; kept < std::min(aside_.size(), most_aside); kept++) {
    bytes += aside_[aside_.size() - 1 - kept]->bytes;
    if (bytes > most_bytes_aside) {
      break;
    }
  }
  aside_.erase(aside_.begin(), aside_.end() - static_cast<std::ptrdiff_t>(kept));
}

std::optional<Fresh> Replay::take_back(const std::vector<mx::array>& roots, mx::Stream s) {
  auto is_alike = [](const mx::array& a, const mx::array& b) { return a.shape() == b.shape() && a.dtype() == b.dtype(); };
  auto has_shapes = [&](const std::shared_ptr<Captured>& other) {
    return std::equal(other->roots.begin(), other->roots.end(), roots.begin(), roots.end(), is_alike);
  };
  for (size_t i = aside_.size(); i-- > 0;) {
    auto other = aside_[i];
    auto fresh = has_shapes(other) ? fresh_of(*other, roots, s) : std::nullopt;
    if (!fresh) {
      continue;
    }
    aside_.erase(aside_.begin() + static_cast<std::ptrdiff_t>(i));
    set_aside();
    captured_ = std::move(other);
    launches_ = worthy;
    return fresh;
  }
  return std::nullopt;
}

std::optional<std::vector<bool>> Replay::inputs_of(const Graph& graph) const {
  if (seen_ && is_same(*seen_, graph)) {
    std::vector<bool> differs(graph.leaves.size());
    for (size_t i = 0; i < differs.size(); i++) {
      differs[i] = !is_at(seen_->leaves[i], graph.values[i]);
    }
    return differs;
  }
  if (usual_ && usual_->nodes == graph.nodes.size() && usual_->inputs.size() == graph.leaves.size()) {
    return usual_->inputs;
  }
  return std::nullopt;
}

bool Replay::varies_only_at(
    const std::vector<int>& leaves, const std::vector<mx::array>& inputs, const std::optional<Launched>& before) const {
  std::vector<bool> is_declared(captured_->inputs.size());
  for (int leaf : leaves) {
    if (leaf == -1) {
      continue;
    }
    if (leaf == unready || is_declared[leaf]) {
      return false;
    }
    is_declared[leaf] = true;
  }
  size_t next = 0;
  for (size_t leaf = 0; leaf < is_declared.size(); leaf++) {
    if (!captured_->inputs[leaf]) {
      continue;
    }
    size_t at = next++;
    auto is_constant = [&] {
      const auto &a = inputs[at], &b = before->inputs[at];
      return is_same_number(a, b) || (a.data_shared_ptr() == b.data_shared_ptr() && a.offset() == b.offset());
    };
    if (!is_declared[leaf] && !(before && is_constant())) {
      return false;
    }
  }
  return true;
}

std::vector<mx::array> Replay::relaunch(const std::vector<mx::array>& declared, const std::vector<mx::array>& written) {
  if (!repeats() || declared.size() != last_->leaves.size()) {
    return {};
  }
  // The graph reads the arrays that it writes.
  auto stream = captured_->graph.nodes[0].primitive->stream();
  auto is_unusable = [&](const mx::array& a) { return !Walk::is_readable(a, stream) || has_failed(a); };
  if (std::any_of(last_->written.begin(), last_->written.end(), has_failed) || std::any_of(written.begin(), written.end(), is_unusable)) {
    return {};
  }
  std::unordered_set<const void*> buffers;
  for (const auto& a : written) {
    buffers.insert(a.buffer().ptr());
  }
  auto is_given = [&](const auto& of) { return buffers.contains(of.second.buffer().ptr()); };
  if (!std::all_of(captured_->in_place.begin(), captured_->in_place.end(), is_given)) {
    return {};
  }
  auto node = std::make_shared<Replayed>(stream, captured_);
  auto inputs = last_->inputs;
  for (size_t i = 0; i < declared.size(); i++) {
    if (last_->leaves[i] < 0) {
      continue; // the graph does not read it
    }
    auto leaf = static_cast<size_t>(last_->leaves[i]);
    const auto& like = captured_->graph.leaves[leaf];
    const auto& a = declared[i];
    bool is_input = captured_->inputs[leaf].has_value();
    if (!Walk::is_readable(a, stream) || !is_like(like, a) || !(is_input || is_at(like, a))) {
      return {};
    }
    if (is_input) {
      auto begin = captured_->inputs.begin();
      auto at = std::count_if(begin, begin + last_->leaves[i], [](const auto& input) { return input.has_value(); });
      inputs[static_cast<size_t>(at)] = a;
    }
  }
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& root : captured_->roots) {
    shapes.push_back(root.shape());
    dtypes.push_back(root.dtype());
  }
  auto last = std::exchange(last_, std::nullopt);
  launches_++;
  auto roots = mx::array::make_arrays(std::move(shapes), dtypes, node, inputs);
  mx::async_eval({roots[0]});
  auto hold_results = [&](const std::vector<mx::array>& arrays) {
    for (auto a : arrays) {
      a.attach_event(roots[0].event());
      a.set_status(mx::array::Status::evaluated);
      share_outcome(roots[0], a);
    }
  };
  hold_results(last->written);
  hold_results(written);
  last->inputs = std::move(inputs);
  last_ = std::move(last);
  return roots;
}

} // namespace mlxrs::cuda
