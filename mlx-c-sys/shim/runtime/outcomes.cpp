// The outcomes of queued nodes (see outcomes.h), and how this library learns which node MLX queues:
// libmlx calls the three functions below through its symbol table, where the definitions of libmlxc
// come first.
#include "core/guard.h"

#ifdef __linux__

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "mlx/primitives.h"
#include "mlx/transforms.h"

#include "of_mlx.h"
#include "outcomes.h"

namespace {

using namespace mlxrs;
using Data = mx::array::Data;

// The outcomes of a thread by the memory of the results.
class Table {
 public:
  bool is_empty() const {
    return size_ == 0;
  }
  size_t size() const {
    return size_;
  }
  // Makes room, so that `put` needs no memory. Entries of freed memory go first.
  void reserve(size_t more) {
    if (2 * (size_ + more) > slots_.size()) {
      keep([](const Slot&) { return true; }, more);
    }
  }
  // There must be room. The memory gets a new outcome if it has one.
  void put(const std::shared_ptr<Data>& data, const std::shared_ptr<Outcome>& outcome) noexcept {
    auto& slot = slots_[place_of(data.get())];
    if (slot.key == nullptr) {
      size_++;
      slot.key = data.get();
      slot.data = data;
    }
    slot.outcome = outcome;
  }
  // Null if the memory has none. The caller holds the memory.
  const std::shared_ptr<Outcome>& find(const Data* data) const {
    static const std::shared_ptr<Outcome> none;
    return size_ == 0 || data == nullptr ? none : slots_[place_of(data)].outcome;
  }
  // Drops the entries of freed memory and those for which `is_kept(outcome)` is false, unless there
  // is no memory for it.
  template <typename IsKept>
  void keep_if(IsKept is_kept) noexcept {
    try {
      keep([&](const Slot& slot) { return is_kept(*slot.outcome); }, 0);
    } catch (const std::bad_alloc&) {
    }
  }
  template <typename F>
  void each(F f) {
    for (auto& slot : slots_) {
      if (slot.key != nullptr) {
        f(*slot.outcome);
      }
    }
  }

 private:
  struct Slot {
    const Data* key = nullptr;
    // It does not keep the memory, but no other object gets the address.
    std::weak_ptr<Data> data;
    std::shared_ptr<Outcome> outcome;
  };

  size_t place_of(const Data* data) const {
    size_t mask = slots_.size() - 1;
    auto at = static_cast<size_t>((reinterpret_cast<uintptr_t>(data) >> 4) * 0x9e3779b97f4a7c15u >> 32) & mask;
    while (slots_[at].key != nullptr && slots_[at].key != data) {
      at = (at + 1) & mask;
    }
    return at;
  }
  template <typename IsKept>
  void keep(IsKept is_kept, size_t more) {
    auto stays = [&](const Slot& slot) { return slot.key != nullptr && !slot.data.expired() && is_kept(slot); };
    size_t count = std::count_if(slots_.begin(), slots_.end(), stays), room = 1024;
    while (room < 4 * (count + more)) {
      room *= 2;
    }
    auto old = std::exchange(slots_, std::vector<Slot>(room));
    size_ = 0;
    for (auto& slot : old) {
      if (stays(slot)) {
        size_++;
        slots_[place_of(slot.key)] = std::move(slot);
      }
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

// The node that an evaluation queues.
struct Queuing {
  std::optional<mx::array> node;
  // Those of the first 64 inputs whose memory its results may take over.
  uint64_t donatable = 0;
  // Whether it writes into the memory of an input in place.
  bool is_in_place = false;
  // Made with the first task.
  std::shared_ptr<Outcome> outcome;
  int report = -1;
  // Whether `node` is known to be the one. Before the first node, an evaluation asks for tracers
  // among other nodes.
  bool is_sure = false;
};

struct Thread {
  Table table;
  // The outcomes that are not confirmed, in the order of their numbers. Only where GPUs compute.
  std::vector<std::shared_ptr<Outcome>> unconfirmed;
  // Streams, each with the number up to which its outcomes are confirmed.
  std::vector<std::pair<int, uint64_t>> confirmed;
  uint64_t next = 1;
  // Null while no evaluation runs.
  Queuing* queuing = nullptr;
  // Whether a node could not be queued since failures were closed last, and whether one has no
  // outcome.
  bool has_refused = false, is_unknown = false;

  // Confirms the outcomes of a stream up to a number.
  void confirm(int stream, uint64_t number) {
    auto known = std::find_if(confirmed.begin(), confirmed.end(), [&](const auto& it) { return it.first == stream; });
    if (known == confirmed.end()) {
      confirmed.emplace_back(stream, number);
    } else {
      known->second = std::max(known->second, number);
    }
  }
  bool is_confirmed(const Outcome& outcome) const {
    return std::any_of(confirmed.begin(), confirmed.end(), [&](const auto& stream) {
      return stream.first == outcome.stream && outcome.number <= stream.second;
    });
  }
  // Whether the outcome is a failure or may become one.
  bool matters(const Outcome& outcome) const;

  ~Thread();
};
thread_local constinit bool has_ended = false;

Thread::~Thread() {
  has_ended = true;
}

Thread& thread() {
  thread_local Thread thread;
  return thread;
}

// Where only CPUs compute, a node's tasks tell its outcome.
bool needs_confirmation() {
  return !is_cpu_library();
}

bool Thread::matters(const Outcome& outcome) const {
  // In this order: an outcome that is not open does not change any more.
  return outcome.is_open() || outcome.has_failed() || (needs_confirmation() && !is_confirmed(outcome));
}

std::shared_ptr<Outcome> make_outcome(Thread& thread, const mx::array& node) {
  Outcome::Inputs inputs;
  for (const auto& input : node.inputs()) {
    const auto& outcome = thread.table.find(input.data_shared_ptr().get());
    if (outcome != nullptr && thread.matters(*outcome)) {
      inputs.push_back(outcome);
    }
  }
  thread.table.reserve(node.siblings().size() + 1);
  bool keeps_inputs = needs_confirmation();
  auto outcome = std::make_shared<Outcome>(node.primitive().stream(), thread.next++, std::move(inputs), keeps_inputs);
  if (keeps_inputs) {
    thread.unconfirmed.push_back(outcome);
  }
  return outcome;
}

// Whether the tasks of the node write a result. A view has the memory of an input, and that
// memory's outcome.
bool is_written(const Queuing& queuing, const mx::array& result) {
  const auto& data = result.data_shared_ptr();
  if (data == nullptr || queuing.is_in_place) {
    return data != nullptr;
  }
  const auto& inputs = queuing.node->inputs();
  for (size_t i = 0; i < inputs.size(); i++) {
    if (inputs[i].data_shared_ptr() == data) {
      return i < 64 && (queuing.donatable >> i & 1) != 0;
    }
  }
  return true;
}

// Calls `f` with each result that the node's tasks write.
template <typename F>
void each_written(const Queuing& queuing, F f) {
  auto look = [&](const mx::array& result) {
    if (is_written(queuing, result)) {
      f(result.data_shared_ptr());
    }
  };
  look(*queuing.node);
  for (const auto& sibling : queuing.node->siblings()) {
    look(sibling);
  }
}

void begin_node(Queuing& queuing, const mx::array& node) {
  queuing.node = node;
  queuing.donatable = 0;
  queuing.is_in_place = false;
  for (size_t i = 0; i < node.inputs().size() && i < 64; i++) {
    queuing.donatable |= uint64_t(node.inputs()[i].is_donatable()) << i;
  }
}

// The node is queued: its results get its outcome.
void end_node(Thread& thread, Queuing& queuing) {
  auto outcome = std::move(queuing.outcome);
  if (outcome == nullptr) {
    try {
      outcome = make_outcome(thread, *queuing.node);
    } catch (const std::bad_alloc&) {
      thread.is_unknown = true;
      throw;
    }
  }
  outcome->report = std::exchange(queuing.report, -1);
  each_written(queuing, [&](const auto& data) { thread.table.put(data, outcome); });
  outcome->end_task();
  queuing.node.reset();
  queuing.is_sure = true;
}

// The node could not be queued. It keeps its operation, but an input whose memory its tasks were to
// write is lost.
void refuse_node(Thread& thread, Queuing& queuing, const char* reason) noexcept {
  if (!queuing.node) {
    return;
  }
  thread.has_refused = true;
  auto outcome = std::move(queuing.outcome);
  if (outcome == nullptr) {
    return;
  }
  Outcome::Reason text;
  try {
    text = std::make_shared<std::string>(reason);
  } catch (const std::bad_alloc&) {
    static const auto no_memory = std::make_shared<std::string>("std::bad_alloc");
    text = no_memory;
  }
  outcome->fail(std::move(text));
  outcome->end_task();
  const auto& inputs = queuing.node->inputs();
  each_written(queuing, [&](const auto& data) {
    auto is_it = [&](const mx::array& input) { return input.data_shared_ptr() == data; };
    if (std::any_of(inputs.begin(), inputs.end(), is_it)) {
      thread.table.put(data, outcome);
    }
  });
}

// Runs one of MLX's evaluations.
template <typename F>
void evaluate(F run) {
  if (has_ended) {
    return run();
  }
  auto& thread = ::thread();
  Queuing queuing;
  // Evaluations nest if a node evaluates arrays while it is queued.
  auto* outer = std::exchange(thread.queuing, &queuing);
  try {
    run();
  } catch (const std::exception& e) {
    thread.queuing = outer;
    refuse_node(thread, queuing, e.what());
    throw;
  } catch (...) {
    thread.queuing = outer;
    refuse_node(thread, queuing, "an exception of unknown type");
    throw;
  }
  thread.queuing = outer;
}

} // namespace

namespace mlxrs {

void prepare_outcomes() {
  thread();
}

std::shared_ptr<Outcome> outcome_of_task() {
  auto* queuing = has_ended ? nullptr : thread().queuing;
  if (queuing == nullptr || !queuing->node) {
    return nullptr;
  }
  if (queuing->outcome == nullptr) {
    queuing->outcome = make_outcome(thread(), *queuing->node);
  }
  queuing->outcome->begin_task();
  return queuing->outcome;
}

int note_report(int slot) {
  auto* queuing = has_ended ? nullptr : thread().queuing;
  if (queuing == nullptr) {
    return slot;
  }
  if (queuing->report < 0) {
    queuing->report = slot;
  }
  return queuing->report;
}

void note_in_place() {
  if (!has_ended && thread().queuing != nullptr) {
    thread().queuing->is_in_place = true;
  }
}

void share_outcome(const mx::array& from, const mx::array& to) {
  auto& table = thread().table;
  table.reserve(1);
  auto outcome = table.find(from.data_shared_ptr().get());
  if (outcome != nullptr && to.data_shared_ptr() != nullptr) {
    table.put(to.data_shared_ptr(), outcome);
  }
}

bool has_failed(const mx::array& a) {
  const auto& outcome = thread().table.find(a.data_shared_ptr().get());
  return outcome != nullptr && outcome->has_failed();
}

void fail_reporting(mx::Stream stream, int slot, const std::string& reason) {
  auto text = std::make_shared<std::string>(reason);
  for (const auto& outcome : thread().unconfirmed) {
    if (outcome->stream == stream.index && outcome->report == slot) {
      outcome->fail(text);
    }
  }
}

void inherit_failures() noexcept {
  if (has_ended) {
    return;
  }
  // Inputs come before the nodes that read them.
  for (const auto& outcome : thread().unconfirmed) {
    outcome->inherit();
  }
}

void confirm(mx::Stream stream, const mx::array* waited) {
  auto& thread = ::thread();
  std::shared_ptr<Outcome> outcome;
  if (waited == nullptr) {
    thread.confirm(stream.index, thread.next - 1);
  } else {
    outcome = thread.table.find(waited->data_shared_ptr().get());
    if (outcome == nullptr) {
      return;
    }
    thread.confirm(outcome->stream, outcome->number);
  }
  inherit_failures();
  // A node that has ended has waited for its inputs, on whatever streams they are. Without this the
  // nodes of a stream that nothing but other streams waits for would never be confirmed.
  auto& unconfirmed = thread.unconfirmed;
  for (auto node = unconfirmed.rbegin(); node != unconfirmed.rend(); ++node) {
    if (thread.is_confirmed(**node)) {
      for (const auto& input : (*node)->inputs()) {
        thread.confirm(input->stream, input->number);
      }
    }
  }
  std::erase_if(unconfirmed, [&](const auto& node) {
    // A failure is kept until its error is returned, which close_failures() explains by it.
    bool is_over = thread.is_confirmed(*node) && (!node->has_failed() || node->is_told);
    if (is_over) {
      node->forget_inputs();
    }
    return is_over;
  });
  constexpr size_t many = 1024;
  if (thread.table.size() > many) {
    thread.table.keep_if([&](const Outcome& node) { return node.has_failed() || !thread.is_confirmed(node); });
  }
  if (outcome != nullptr && outcome->has_failed()) {
    // A kernel of a GPU that reads a failed result raises no error.
    throw std::runtime_error(*outcome->reason());
  }
}

void close_failures(const char* reason, bool all) {
  if (has_ended) {
    return;
  }
  auto& thread = ::thread();
  all |= std::exchange(thread.is_unknown, false);
  bool is_known = std::exchange(thread.has_refused, false);
  inherit_failures();
  auto each = [&](auto f) {
    thread.table.each(f);
    for (const auto& outcome : thread.unconfirmed) {
      f(*outcome);
    }
  };
  each([&](Outcome& outcome) {
    is_known |= outcome.has_failed() && !outcome.is_told;
    outcome.is_told |= outcome.has_failed();
  });
  if (all || (needs_confirmation() && !is_known)) {
    auto text = std::make_shared<std::string>(reason);
    each([&](Outcome& outcome) {
      if (!thread.is_confirmed(outcome)) {
        outcome.fail(text);
        outcome.is_told = true;
      }
    });
  }
  thread.table.keep_if([&](const Outcome& outcome) { return thread.matters(outcome); });
}

} // namespace mlxrs

namespace mlx::core {

void eval(std::vector<array> outputs) {
  static auto* mlx = mlxrs::of_mlx<void(std::vector<array>)>("_ZN3mlx4core4evalESt6vectorINS0_5arrayESaIS2_EE");
  evaluate([&] { mlx(std::move(outputs)); });
}

void async_eval(std::vector<array> outputs) {
  static auto* mlx = mlxrs::of_mlx<void(std::vector<array>)>("_ZN3mlx4core10async_evalESt6vectorINS0_5arrayESaIS2_EE");
  evaluate([&] { mlx(std::move(outputs)); });
}

// Each evaluation asks this of a node right before it queues the node's tasks, and again right
// after that.
bool array::is_tracer() const {
  static auto* mlx = mlxrs::of_mlx<bool(const array*)>("_ZNK3mlx4core5array9is_tracerEv");
  bool result = mlx(this);
  auto* queuing = has_ended ? nullptr : thread().queuing;
  if (queuing == nullptr || !has_primitive()) {
    return result;
  }
  if (status() == Status::unscheduled) {
    // While a node's tasks are queued, the node may ask this of other arrays.
    if (!queuing->node || (!queuing->is_sure && queuing->outcome == nullptr)) {
      begin_node(*queuing, *this);
    }
  } else if (queuing->node && queuing->node->id() == id()) {
    end_node(thread(), *queuing);
  }
  return result;
}

} // namespace mlx::core

extern "C" int mlxrs_array_lost(bool* lost, const char** reason, mlx_array a) {
  return guarded([&] {
    *lost = false;
    *reason = nullptr;
    if (has_ended || thread().table.is_empty()) {
      return;
    }
    const auto& table = thread().table;
    thread_local Outcome::Reason text;
    // Arrays are not changed meanwhile, so that pointers to them stay valid.
    std::vector<const mx::array*> left{&mlx_array_get_(a)};
    std::unordered_set<std::uintptr_t> seen;
    while (!left.empty() && !*lost) {
      const auto& next = *left.back();
      left.pop_back();
      if (next.status() != mx::array::Status::unscheduled) {
        const auto& outcome = table.find(next.data_shared_ptr().get());
        if (outcome != nullptr && outcome->has_failed()) {
          text = outcome->reason();
          *lost = true;
          *reason = text->c_str();
        }
      } else if (seen.insert(next.id()).second) {
        for (const auto& input : next.inputs()) {
          left.push_back(&input);
        }
      }
    }
  });
}

#else

// MLX does not tell which arrays a failed evaluation has reached.
extern "C" int mlxrs_array_lost(bool* lost, const char** reason, mlx_array) {
  *lost = true;
  *reason = nullptr;
  return 0;
}

#endif
