// Whether queued operations have succeeded, so that a failure costs only the arrays that depend on
// it.
//
// MLX forgets the operation of an array when it queues the operation. If the operation fails later,
// the array looks computed and holds garbage, and so do the arrays that are computed from it. Here
// each queued node has an `Outcome`. The tasks of the node carry it, and a table of the thread
// finds it by the memory of the node's results. A task does not run if its node reads a result of a
// failed node: then its node has failed too. All other tasks run, also on a stream on which another
// node failed.
//
// The kernels of a GPU have no such tasks, and run whatever they read. Their nodes get the failures
// of their inputs when they are waited for, and after each error.
//
// A node that could not be queued (it got no memory, say) keeps its operation, and can be queued
// again.
#pragma once

#ifdef __linux__

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mlx/array.h"
#include "mlx/error.h"
#include "mlx/stream.h"

namespace mlxrs {

namespace mx = mlx::core;

// The outcome of a node: whether one of its tasks has failed.
class Outcome {
 public:
  using Reason = mx::Error::Message;
  using Inputs = std::vector<std::shared_ptr<Outcome>>;

  // `inputs` are the outcomes of arrays that the node reads, if they have failed or may still fail.
  Outcome(mx::Stream stream, uint64_t number, Inputs inputs, bool keeps_inputs)
      : stream(stream.index), number(number), inputs_(std::move(inputs)), keeps_inputs_(keeps_inputs) {}

  bool has_failed() const {
    return state_.load(std::memory_order_acquire) == failed;
  }
  // Valid only if it has failed.
  const Reason& reason() const {
    return reason_;
  }
  // Keeps the first failure. May be called on any thread.
  void fail(Reason reason) noexcept {
    int expected = unknown;
    if (state_.compare_exchange_strong(expected, failing)) {
      reason_ = std::move(reason);
      state_.store(failed, std::memory_order_release);
    }
  }
  // Whether the tasks of the node may run. Called on the thread that runs them, one task after the
  // other.
  bool may_run() noexcept {
    inherit();
    if (!keeps_inputs_) {
      inputs_.clear();
    }
    return !has_failed();
  }
  // Fails if an input has failed.
  void inherit() noexcept {
    for (const auto& input : inputs_) {
      if (input->has_failed()) {
        return fail(input->reason());
      }
    }
  }
  // Called on the thread that queued the node, after its tasks have ended.
  void forget_inputs() noexcept {
    inputs_.clear();
  }
  const Inputs& inputs() const {
    return inputs_;
  }

  // A node is open until it is queued and its last task has ended.
  void begin_task() noexcept {
    open_.fetch_add(1, std::memory_order_relaxed);
  }
  void end_task() noexcept {
    open_.fetch_sub(1, std::memory_order_release);
  }
  bool is_open() const {
    return open_.load(std::memory_order_acquire) > 0;
  }

  const int stream;
  // Nodes that a thread queues later have larger numbers.
  const uint64_t number;
  // Where kernels of a GPU report a failure of this node (cuda/report.h); -1 if they report none.
  int report = -1;
  // Whether an error has been returned for this failure.
  bool is_told = false;

 private:
  enum { unknown, failing, failed };

  Inputs inputs_;
  const bool keeps_inputs_;
  std::atomic<int> open_ = 1, state_ = unknown;
  Reason reason_;
};

// The outcome that a task of an operation gets: that of the node which the calling thread queues.
// Null if it queues none.
std::shared_ptr<Outcome> outcome_of_task();

// Prepares the calling thread: its outcomes must not need memory first when there is none left.
void prepare_outcomes();

// Kernels of a GPU will report failures of the node that the calling thread queues in this slot of
// its stream. Returns the slot of the node, which is another one if it has one already.
int note_report(int slot);

// The node that the calling thread queues writes into the memory of an input, whatever else holds
// that memory.
void note_in_place();

// Gives `to` the outcome of `from`. Both are evaluated on this thread.
void share_outcome(const mx::array& from, const mx::array& to);

// Whether the array is a result of a failed node.
bool has_failed(const mx::array& a);

// Fails the nodes of this thread's stream that are not confirmed and have this slot.
void fail_reporting(mx::Stream stream, int slot, const std::string& reason);

// Gives the nodes of this thread the failures of their inputs, as far as they are known now.
void inherit_failures() noexcept;

// Confirms the nodes of `stream` up to that of `waited`, or all of its nodes if that is null, and
// those that they have waited for: they have ended, and no kernel has reported a failure. Throws if
// the node of `waited` has failed.
void confirm(mx::Stream stream, const mx::array* waited);

// Called for each error of an evaluation, after the streams of this thread have ended their tasks.
// If `all`, or if GPUs compute and no known node has failed, all nodes fail that are not confirmed.
void close_failures(const char* reason, bool all);

} // namespace mlxrs

#endif
