// The scheduler of CPU streams, in place of MLX's. libmlx calls these four functions through its symbol table, where
// the definitions of libmlxc come first. It differs from MLX's own in six points:
//
//   - The tasks of operations that depend on a failed one are not run (see outcomes.h). MLX runs them on arrays that were
//     never written, so that an index read there may be any number.
//   - A stream's thread ends with the thread that owns the stream. MLX keeps it to the end of the process.
//   - An error is delivered to the thread that owns the stream. MLX gives it to any thread that waits for the stream,
//     and `clear_cache` waits for all of them.
//   - A failure is returned once, by a wait, and stays set until mlxrs_clear_failures has seen the
//     stream end its tasks. MLX's error is cleared by the call that returns it, and the remaining
//     tasks of the failed node and of those that depend on it set it again. On the first thread that
//     uses MLX it is even returned by the call that queues the next task, of whatever node. The same
//     failure then came back with nothing to explain it, and cost all arrays that had not been
//     waited for.
//   - With the CPU library, tasks are counted for each stream. MLX counts those of all streams together, and a thread
//     that evaluates sleeps after each node while more than ten are counted. So one model could not compute a step
//     while another one was read, because each node of the step waited for ten tensors.
//   - After a connection of MLX's ring was lost, no collective is run (see ring.h). MLX's would wait for ever.
//
// A stream's thread takes all waiting tasks under one lock, and a task is one allocation where MLX makes two.
//
// Only on Linux, with MLX's CPU library and with its CUDA library.
#ifdef __linux__

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/backend/gpu/device_info.h"
#include "mlx/event.h"
#include "mlx/memory.h"
#include "mlx/scheduler.h"

#include "core/guard.h"
#include "of_mlx.h"
#include "outcomes.h"
#include "worker.h"

#ifdef MLXRS_CUDA
#include "cuda/report.h"
#endif

namespace {

namespace mx = mlx::core;
using mlxrs::Worker;

// Whether a task is the work of an operation. Other tasks (signals, counts) must run even if the operation failed. Only
// the encoder makes tasks with std::bind, and they are the work.
bool is_work(const std::function<void()>& task) {
  constexpr const char bound[] = "St5_Bind";
  return std::strncmp(task.target_type().name(), bound, sizeof bound - 1) == 0;
}

// Whether a task is the encoder's, which ends the count of the task before it.
bool is_end_of_count(const std::function<void()>& task) {
  constexpr const char dispatched[] = "ZN3mlx4core3cpu14CommandEncoder8dispatch";
  return std::strncmp(task.target_type().name(), dispatched, sizeof dispatched - 1) == 0;
}

// As many counted tasks as in MLX may wait.
constexpr int most_counted = 10;

// The workers of all streams by stream index. Never destroyed, because streams work while a program ends.
struct Workers {
  std::shared_mutex mutex;
  std::unordered_map<int, std::shared_ptr<Worker>> of;

  std::shared_ptr<Worker> find(int stream) {
    std::shared_lock lock(mutex);
    auto found = of.find(stream);
    return found == of.end() ? nullptr : found->second;
  }
  // Makes `worker` fail with the error of the stream, if the stream failed. It takes no shared reference to the
  // stream's worker, because the owner of the last reference waits for the worker's thread.
  void inherit(int stream, Worker& worker) {
    std::shared_lock lock(mutex);
    auto found = of.find(stream);
    if (found != of.end() && found->second->has_failed()) {
      worker.fail(found->second->reason());
    }
  }
};

Workers& workers() {
  static auto* workers = new Workers;
  return *workers;
}

// The streams of the calling thread that have a worker.
struct Own {
  std::vector<std::pair<int, std::shared_ptr<Worker>>> workers;

  Worker* find(int stream) const {
    for (const auto& [index, worker] : workers) {
      if (index == stream) {
        return worker.get();
      }
    }
    return nullptr;
  }
  ~Own();
};
thread_local Own own;
thread_local constinit bool own_ended = false;

Own::~Own() {
  own_ended = true;
  for (auto& [index, worker] : workers) {
    std::unique_lock lock(::workers().mutex);
    ::workers().of.erase(index);
  }
  // Waits for the remaining tasks.
  workers.clear();
}

// Whether the calling thread made the stream.
bool is_own(mx::Stream stream) {
  try {
    mx::cpu::get_command_encoder(stream);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

// Makes a worker for a stream of this thread.
Worker* start_worker(mx::Stream stream) {
  std::shared_ptr<Worker> worker;
  try {
    worker = std::make_shared<Worker>();
  } catch (const std::system_error& e) {
    throw std::runtime_error(std::string("no thread for a stream: ") + e.what());
  }
  own.workers.emplace_back(stream.index, worker);
  std::unique_lock lock(workers().mutex);
  workers().of.emplace(stream.index, worker);
  return worker.get();
}

// Queues the task that `make` makes for the stream's worker. `make` gets null if another thread waits for a stream that
// has nothing to do; then its task runs at once.
template <typename Make>
void push(mx::Stream stream, bool is_work, Make make) {
  Worker* worker = own_ended ? nullptr : own.find(stream.index);
  std::shared_ptr<Worker> other;
  if (worker == nullptr) {
    other = workers().find(stream.index);
    worker = other.get();
  }
  if (worker == nullptr && !own_ended && is_own(stream)) {
    worker = start_worker(stream);
  }
  if (worker != nullptr) {
    mlxrs::Task task{make(worker), is_work ? mlxrs::outcome_of_task() : nullptr};
    task.is_collective = is_work && mlxrs::is_collective(task.run);
    return worker->push(std::move(task));
  }
  if (is_work) {
    throw std::runtime_error("the thread of stream " + std::to_string(stream.index) + " has ended");
  }
  make(nullptr)();
}

// Counts a task, which MLX has counted for all streams, for its own stream, and queues its end. Like MLX after a node,
// waits while too many count, or while any does beyond the limit of memory.
void count_task(Worker& worker, mx::Stream stream) {
  worker.push({[&worker] { worker.count(-1); }, nullptr});
  worker.count(1);
  mx::scheduler::notify_task_completion(stream);
  bool is_beyond = mx::get_active_memory() > mx::get_memory_limit();
  worker.wait_for_count(is_beyond ? 0 : most_counted);
}

// Sets MLX's count of tasks to 0 after `finish`. A task that could not be queued stays counted, and evaluations would
// wait for the count to fall. If other threads have streams too, the count may be theirs and is not changed.
void balance() {
  std::shared_lock lock(workers().mutex);
  if (workers().of.size() > own.workers.size()) {
    return;
  }
  mx::Stream any(0, mx::Device::cpu);
  while (mx::scheduler::n_active_tasks() > 0) {
    mx::scheduler::notify_task_completion(any);
  }
  while (mx::scheduler::n_active_tasks() < 0) {
    mx::scheduler::notify_new_task(any);
  }
}

} // namespace

namespace mlxrs {

bool is_cpu_library() {
  static const bool found = [] {
    // Other libraries export the class of their GPU streams.
    void* cuda = dlsym(RTLD_DEFAULT, "_ZN3mlx4core2cu19get_command_encoderENS0_6StreamE");
    return cuda == nullptr && !mx::gpu::is_available();
  }();
  return found;
}

Worker* counting_worker(mx::Stream stream) {
  return own_ended || !is_cpu_library() ? nullptr : own.find(stream.index);
}

void prepare_workers() {
  // The first use of `own` on a thread makes it.
  own.workers.reserve(1);
}

void finish_own_workers() noexcept {
  if (!own_ended) {
    for (const auto& [index, worker] : own.workers) {
      worker->finish();
    }
  }
}

void wait_for_workers() noexcept {
  std::vector<std::future<void>> ends;
  {
    std::shared_lock lock(workers().mutex);
    for (const auto& [index, worker] : workers().of) {
      try {
        auto reached = std::make_shared<std::promise<void>>();
        ends.push_back(reached->get_future());
        worker->push({[reached] { reached->set_value(); }, nullptr});
      } catch (const std::bad_alloc&) {
        // There is no memory to wait for this worker. If the task is lost, the wait for it ends at once.
      }
    }
  }
  for (const auto& end : ends) {
    end.wait();
  }
}

} // namespace mlxrs

namespace mlx::core::scheduler {

void Scheduler::enqueue(Stream stream, std::function<void()> task) {
  bool works = is_work(task);
  if (!works && is_end_of_count(task)) {
    if (Worker* worker = mlxrs::counting_worker(stream)) {
      return count_task(*worker, stream);
    }
  }
  push(stream, works, [&](Worker*) { return std::move(task); });
}

void Scheduler::wait_event(Stream stream, Event event, std::function<void(Event&)> task) {
  push(stream, false, [&](Worker* worker) {
    return [worker, event = std::move(event), task = std::move(task)]() mutable {
      task(event);
      if (worker != nullptr) {
        workers().inherit(event.stream().index, *worker);
      }
    };
  });
}

void Scheduler::signal_event(Stream stream, Event event, std::function<void(Event&)> task) {
  push(stream, false, [&](Worker* worker) {
    return [worker, event = std::move(event), task = std::move(task)]() mutable {
      if (worker != nullptr) {
        worker->set_error_of(event);
      }
      task(event);
    };
  });
}

void Scheduler::check_error(Stream stream) {
  Worker* worker = own_ended ? nullptr : own.find(stream.index);
  if (worker != nullptr && worker->has_failed()) {
    throw std::runtime_error(*worker->reason());
  }
}

} // namespace mlx::core::scheduler

extern "C" int mlxrs_clear_failures(const char* reason, bool all) {
  return mlxrs::guarded([=] {
#ifdef MLXRS_CUDA
    mlxrs::cuda::forget_findings();
#endif
    if (!own_ended) {
      // All streams finish before the failure of one is cleared, because one stream may wait for another.
      for (const auto& [index, worker] : own.workers) {
        worker->finish();
      }
      for (const auto& [index, worker] : own.workers) {
        worker->clear_failure();
      }
      // With the CUDA library the count includes work of GPUs.
      if (mlxrs::is_cpu_library()) {
        balance();
      }
    }
    mlxrs::close_failures(reason, all);
  });
}

extern "C" size_t mlxrs_stream_threads(void) {
  std::shared_lock lock(workers().mutex);
  return workers().of.size();
}

#else

#include <cstddef>

#include "mlxrs.h"

extern "C" int mlxrs_clear_failures(const char*, bool) {
  return 0;
}
extern "C" size_t mlxrs_stream_threads(void) {
  return 0;
}

#endif
