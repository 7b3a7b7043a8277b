// See threads.h.
#include "threads.h"

#include "memory.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace mlxrs {

namespace {

// The matrix products of a decode step are tens of microseconds apart, and waking a sleeping thread takes that long.
constexpr auto spin_time = std::chrono::microseconds(100);

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done` or until the spin time is over. Returns whether `done` is true.
template <typename Done>
bool spin(const Done& done) {
  auto end = std::chrono::steady_clock::now() + spin_time;
  do {
    for (int i = 0; i < 64; i++) {
      if (done()) {
        return true;
      }
      pause();
    }
    // Threads with work run first.
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

// The cores that the process may use, limited by the CPU quota of its control group.
int cores() {
  int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    cores = std::max(1, CPU_COUNT(&set));
  }
#endif
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && quota > 0 && period > 0) {
    cores = std::clamp(static_cast<int>(quota / period), 1, cores);
  }
  return cores;
}

} // namespace

int wanted_threads() {
  const char* text = std::getenv("MLX_CPU_THREADS");
  if (text == nullptr) {
    return cores();
  }
  char* end = nullptr;
  long count = std::strtol(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0' || count < 1 || count > 1024) {
    throw std::invalid_argument("MLX_CPU_THREADS must be a whole number from 1 to 1024, given \"" + std::string(text) + "\"");
  }
  return static_cast<int>(count);
}

namespace {

// Whether this thread is inside the body of a loop. Always true on the threads of the pool.
thread_local bool is_inside = false;

} // namespace

Threads& Threads::shared() {
  static Threads* threads = new Threads(wanted_threads());
  return *threads;
}

Threads::Threads(int count) : count_(count) {
  for (int i = 1; i < count; i++) {
    try {
      std::thread([this] { work(); }).detach();
    } catch (const std::system_error&) {
      // The system allows no more threads, so the pool stays at this size.
      count_ = i;
      break;
    }
  }
}

void Threads::run(uint32_t n, Call call, const void* body) {
  std::unique_lock lock(busy_, std::defer_lock);
  if (n < 2 || count_ < 2 || is_inside || !lock.try_lock()) {
    for (uint32_t i = 0; i < n; i++) {
      call(body, i);
    }
    return;
  }
  call_ = call;
  body_ = body;
  failed_.store(false, std::memory_order_relaxed);
  unfinished_.store(n, std::memory_order_relaxed);
  left_.store(n, std::memory_order_release);
  loops_.fetch_add(1, std::memory_order_release);
  loops_.notify_all();
  is_inside = true;
  drain();
  is_inside = false;
  if (!spin([&] { return unfinished_.load(std::memory_order_acquire) == 0; })) {
    // The system has descheduled a thread in the middle of a body.
    while (uint32_t unfinished = unfinished_.load(std::memory_order_acquire)) {
      unfinished_.wait(unfinished, std::memory_order_acquire);
    }
  }
  if (failed_.load(std::memory_order_relaxed)) {
    throw std::bad_alloc();
  }
}

void Threads::work() {
  prepare_thread();
  is_inside = true;
  uint32_t seen = loops_.load(std::memory_order_acquire);
  // A loop may have begun before this thread started.
  drain();
  for (;;) {
    auto begun = [&] { return loops_.load(std::memory_order_acquire) != seen; };
    if (!spin(begun)) {
      loops_.wait(seen, std::memory_order_acquire);
    }
    seen = loops_.load(std::memory_order_acquire);
    drain();
  }
}

void Threads::drain() {
  uint32_t left = left_.load(std::memory_order_acquire), done = 0;
  while (left > 0) {
    // A thread that holds an index may read the loop: the loop cannot end before unfinished_ is decremented for this
    // index.
    if (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    try {
      call_(body_, left - 1);
    } catch (...) {
      failed_.store(true, std::memory_order_relaxed);
    }
    done++;
    left = left_.load(std::memory_order_acquire);
  }
  // One decrement for all indices, because each decrement waits for the cache line.
  if (done > 0 && unfinished_.fetch_sub(done, std::memory_order_acq_rel) == done) {
    unfinished_.notify_one();
  }
}

} // namespace mlxrs
