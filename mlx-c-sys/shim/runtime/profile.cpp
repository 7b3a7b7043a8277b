// Measures the time of nodes on CPU streams. Evaluating a node only queues its tasks, so a profile queues one task
// before and one task after them. The time between two nodes is measured too: MLX's own operations, bookkeeping, and
// waiting for the thread that builds the graph.
#include "profile.h"

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "mlx/scheduler.h"
#include "mlxrs.h"

namespace mlxrs {

namespace {

namespace mx = mlx::core;
using Clock = std::chrono::steady_clock;

struct Total {
  uint64_t times = 0;
  Clock::duration taken{};
};

std::mutex guard;
std::map<std::string, Total> totals;
// The number of the running profile, or 0. Each start increases the number, so that nodes of an earlier profile are not
// counted.
std::atomic<uint64_t> profile{0};

// The state of a stream's thread: when its last node began, and when the node before it ended, if both belong to the
// profile.
struct Times {
  uint64_t profile = 0;
  Clock::time_point begun, ended;
  bool has_ended = false;
};
thread_local Times times;

void count(const std::string& name, Clock::duration taken) {
  std::lock_guard lock(guard);
  auto& total = totals[name];
  total.times++;
  total.taken += taken;
}

} // namespace

bool is_profiled() {
  return profile.load(std::memory_order_relaxed) != 0;
}

// Queued directly and not with the stream's encoder, because the encoder counts tasks and makes threads wait
// (run_ahead.cpp).
void node_begins(mx::Stream stream) {
  mx::scheduler::enqueue(stream, [now = profile.load()] {
    if (now != times.profile) {
      times = {.profile = now};
    }
    times.begun = Clock::now();
    if (times.has_ended && now == profile.load()) {
      count("", times.begun - times.ended);
    }
  });
}

void node_ends(mx::Stream stream, const char* name) {
  mx::scheduler::enqueue(stream, [now = profile.load(), name = std::string(name)] {
    if (now != times.profile) {
      return;
    }
    times.ended = Clock::now();
    times.has_ended = true;
    if (now == profile.load()) {
      count(name, times.ended - times.begun);
    }
  });
}

} // namespace mlxrs

extern "C" void mlxrs_profile_start(void) {
  static uint64_t last = 0;
  std::lock_guard lock(mlxrs::guard);
  mlxrs::totals.clear();
  mlxrs::profile.store(++last);
}

extern "C" void mlxrs_profile_end(
    void* to, void (*report)(void* to, const char* name, uint64_t times, double seconds)) {
  std::map<std::string, mlxrs::Total> totals;
  {
    std::lock_guard lock(mlxrs::guard);
    mlxrs::profile.store(0);
    totals.swap(mlxrs::totals);
  }
  for (const auto& [name, total] : totals) {
    report(to, name.c_str(), total.times, std::chrono::duration<double>(total.taken).count());
  }
}
