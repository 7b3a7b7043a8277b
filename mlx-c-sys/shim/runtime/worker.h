// The thread of a CPU stream, which runs the tasks of the stream in order.
#pragma once

#ifdef __linux__

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mlx/error.h"
#include "mlx/event.h"

#include "memory.h"
#include "of_mlx.h"
#include "outcomes.h"
#include "ring.h"

namespace mlx::core {

// The layout of an event of the CPU library (backend/no_gpu/event.cpp of the pinned version). It is copied here because
// the member function of `Event` that sets its error is not exported.
struct EventCounter {
  uint64_t value;
  std::mutex mutex;
  std::condition_variable condition;
  std::atomic<Error*> error;
};

// The beginning of an event of the CUDA library (backend/cuda/event.h; cuda/report.cpp compares them).
struct CudaEventError {
  std::atomic<Error*> error;
};

} // namespace mlx::core

namespace mlxrs {

namespace mx = mlx::core;

struct Task {
  std::function<void()> run;
  // That of the node whose work this is, or null.
  std::shared_ptr<Outcome> outcome;
  // Whether it is a collective of a ring.
  bool is_collective = false;
};

// The thread of a stream and its waiting tasks.
class Worker {
 public:
  Worker() : no_memory_(std::make_shared<std::string>("std::bad_alloc")), error_(new mx::Error) {
    waiting_.reserve(room);
    taken_.reserve(room);
    thread_ = std::thread([this] { work(); });
  }
  ~Worker() {
    {
      std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void push(Task task) {
    std::unique_lock lock(mutex_);
    for (int tries = 0; waiting_.size() == waiting_.capacity(); tries++) {
      try {
        waiting_.reserve(std::max(room, 2 * waiting_.capacity()));
      } catch (const std::bad_alloc&) {
        // The thread takes the waiting tasks soon, unless it waits for the calling thread.
        if (tries == 1000) {
          throw;
        }
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        lock.lock();
      }
    }
    waiting_.push_back(std::move(task));
    lock.unlock();
    wake_.notify_one();
  }

  bool has_failed() const {
    return has_failed_.load(std::memory_order_acquire);
  }
  // Valid only if the worker has failed, or on its thread.
  const mx::Error::Message& reason() const {
    return reason_;
  }
  // Keeps the first failure. Called on the worker's thread only.
  void fail(mx::Error::Message reason) noexcept {
    if (has_failed()) {
      return;
    }
    reason_ = std::move(reason);
    has_failed_.store(true, std::memory_order_release);
  }
  // Waits until the thread has nothing to do. Allocates nothing.
  void finish() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return waiting_.empty() && !is_busy_; });
  }
  // Counts tasks, or with a negative number their ends.
  void count(int tasks) {
    counted_.fetch_add(tasks, std::memory_order_acq_rel);
    if (tasks < 0) {
      counted_.notify_one();
    }
  }
  // Waits until at most `most` tasks count. Called on the thread that owns the stream only.
  void wait_for_count(int most) {
    while (true) {
      int counted = counted_.load(std::memory_order_acquire);
      if (counted <= most) {
        return;
      }
      counted_.wait(counted, std::memory_order_acquire);
    }
  }
  // Must be called after `finish`.
  void clear_failure() {
    error_->set_message(nullptr);
    has_failed_.store(false, std::memory_order_release);
  }

  // Sets the error of the event if this stream has failed. Allocates nothing, because the event must be signalled in
  // every case.
  void set_error_of(const mx::Event& event) noexcept {
    if (has_failed()) {
      error_->set_message(reason_);
      auto& error = is_cpu_library() ? event.cast<mx::EventCounter>().error : event.cast<mx::CudaEventError>().error;
      error.store(error_);
    }
  }

 private:
  static constexpr size_t room = 1024;

  void work() {
    prepare_thread();
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        is_busy_ = false;
        if (waiting_.empty()) {
          finished_.notify_all();
        }
        wake_.wait(lock, [this] { return is_ending_ || !waiting_.empty(); });
        if (waiting_.empty()) {
          return;
        }
        taken_.swap(waiting_);
        is_busy_ = true;
      }
      for (auto& task : taken_) {
        run(task);
        // Frees the inputs that the task kept, so that later tasks can use their memory.
        task.run = nullptr;
        if (task.outcome != nullptr) {
          task.outcome->end_task();
        }
      }
      taken_.clear();
    }
  }

  void run(Task& task) noexcept {
    if (task.outcome != nullptr && !task.outcome->may_run()) {
      if (task.is_collective) {
        miss_collective(*task.outcome->reason());
      }
      return fail(task.outcome->reason());
    }
    if (task.is_collective) {
      if (auto lost = ring_lost()) {
        return fail(task, std::move(lost));
      }
    }
    try {
      task.run();
    } catch (const std::exception& e) {
      auto lost = task.is_collective ? fail_collective(e.what()) : nullptr;
      fail(task, lost != nullptr ? std::move(lost) : message(e.what()));
    } catch (...) {
      fail(task, message("an exception of unknown type"));
    }
  }
  void fail(Task& task, mx::Error::Message reason) noexcept {
    if (task.outcome != nullptr) {
      task.outcome->fail(reason);
    }
    fail(std::move(reason));
  }
  mx::Error::Message message(const char* text) const noexcept {
    try {
      return std::make_shared<std::string>(text);
    } catch (const std::bad_alloc&) {
      return no_memory_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::vector<Task> waiting_;
  // Used on the thread only.
  std::vector<Task> taken_;
  bool is_ending_ = false, is_busy_ = false;
  std::atomic<bool> has_failed_ = false;
  // The tasks that count and have not ended.
  std::atomic<int> counted_ = 0;
  const mx::Error::Message no_memory_;
  mx::Error::Message reason_;
  // Events may outlive the worker, so their error is never freed.
  mx::Error* const error_;
  std::thread thread_;
};

// The worker that counts the tasks of a stream of the calling thread; null if MLX counts them.
Worker* counting_worker(mx::Stream stream);

// Makes the calling thread note its end, after which it has no workers and its streams get none. MLX destroys the
// thread's encoders at its end, and must have made them before this call: objects of a thread are destroyed in the
// reverse order.
void prepare_workers();

// Waits for the tasks of the calling thread's streams, which may still hold buffers. Those of other threads may take
// seconds, and this thread needs none of their results.
void finish_own_workers() noexcept;

// Waits for the tasks that the workers of all threads have now. Uses no thread-local object.
void wait_for_workers() noexcept;

} // namespace mlxrs

#endif
