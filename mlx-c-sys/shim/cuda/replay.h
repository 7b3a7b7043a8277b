// Launches a computation that repeats, such as the decode step of a batch, as one CUDA graph.
//
// The caller builds its lazy graph of arrays as usual. `Replay` compares it with the graph before. If operations,
// settings, shapes and large inputs are the same, its kernels are captured once as a CUDA graph, and later calls launch
// that graph. Small inputs that differ each time (tokens, positions, keys of random numbers) are copied to the arrays
// that the captured kernels read, and results are copied to new arrays. A graph that differs is evaluated as usual, or
// captured at once if it has as many nodes and leaves as one that was launched several times: it is the same step with
// other buffers or another number of rows. The graphs of other numbers of rows are kept, as far as their memory allows. A
// caller that knows which of its arrays differ can launch the captured graph again without a graph of arrays.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/graph.h"

namespace mlxrs::cuda {

struct Captured;
struct Fresh;

class Replay {
 public:
  // Queues the evaluation of `roots`, like mx::async_eval. Intermediate arrays stay unevaluated, except those that were
  // written in place. `declared` are the small arrays that the host made for this computation, as far as `relaunch` will be
  // given others for them.
  void eval(std::vector<mx::array> roots, const std::vector<mx::array>& declared);

  // Whether the last computation was a launch of a captured graph in which only declared arrays differ from launch to
  // launch, so that `relaunch` can launch it without a graph of arrays. A number or an array that was not declared does not
  // count if it was the same in the launch before.
  bool repeats() const {
    return last_ && last_->repeats;
  }

  // Launches the captured graph with these arrays in place of the declared ones, in the same order. `written` are the present
  // handles of the arrays that the graph writes in place: other kernels may have written them since, under new handles.
  // Returns the new roots, or nothing if the graph cannot be launched with these arrays, or writes others. The written
  // arrays hold the new values, and are ready when the roots are.
  std::vector<mx::array> relaunch(const std::vector<mx::array>& declared, const std::vector<mx::array>& written);

 private:
  // The last launch of the captured graph.
  struct Launched {
    // The leaf of each declared array; -1 if the graph does not read it.
    std::vector<int> leaves;
    // The leaves that can differ between launches.
    std::vector<mx::array> inputs;
    // The arrays of the last `eval` that the graph writes in place.
    std::vector<mx::array> written;
    bool repeats;
  };

  // Whether none of `leaves` appears twice or is not evaluated, and all other `inputs` of a launch were the same `before`.
  bool varies_only_at(
      const std::vector<int>& leaves, const std::vector<mx::array>& inputs, const std::optional<Launched>& before) const;

  // The size of a graph, and which of its leaves can differ between launches.
  struct Usual {
    size_t nodes;
    std::vector<bool> inputs;
  };

  // Sets the captured graph aside if it was launched often, and drops it otherwise.
  void set_aside();
  // Takes back a graph that was set aside, if it is the one behind `roots`. Returns what a launch needs.
  std::optional<Fresh> take_back(const std::vector<mx::array>& roots, mx::Stream s);

  // Which leaves of a graph can differ, if it is to be captured: those that differ from the last graph, if it is the same,
  // and those of the usual graph, if that one has the same size.
  std::optional<std::vector<bool>> inputs_of(const Graph& graph) const;

  // The last graph that was evaluated without a capture. It keeps small leaves only.
  std::optional<Graph> seen_;
  std::shared_ptr<Captured> captured_;
  // Graphs that were captured before, those that were set aside last at the end.
  std::vector<std::shared_ptr<Captured>> aside_;
  // The number of launches of the captured graph.
  size_t launches_ = 0;
  // The last captured graph that was worth its capture.
  std::optional<Usual> usual_;
  // Nothing if the last computation was not a launch.
  std::optional<Launched> last_;
  // After a capture that has failed, the next one is tried `pause_` computations later, of which `wait_` are left. The pause
  // doubles with each failure: collectives, for example, can be captured only after they have run.
  int pause_ = 0, wait_ = 0;
};

} // namespace mlxrs::cuda
