// A thread pool that runs one parallel loop at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace mlxrs {

// The number of threads in MLX_CPU_THREADS, or the number of cores that the process may use. Throws
// std::invalid_argument if the variable is not an integer from 1 to 1024.
int wanted_threads();

// Runs parallel loops. The caller runs bodies too. It waits only for bodies that have begun, and not for threads to
// wake up, so a busy machine can delay a loop but not block it. After fork() the child process, which has only the
// calling thread, still works.
class Threads {
 public:
  // The pool of the process, with wanted_threads() threads. The threads are never joined: at exit they sleep or spin,
  // and hold no resource. Throws the errors of wanted_threads().
  static Threads& shared();

  // The most threads that run a loop, including the caller.
  int count() const {
    return count_;
  }

  // Calls body(i) for each i in [0, n), on any threads, and returns when all calls have returned. A loop that starts
  // inside a body, or while another loop runs, runs on the calling thread only. If a body throws, this throws
  // std::bad_alloc.
  template <typename Body>
  void each(uint32_t n, const Body& body) {
    run(n, [](const void* body, uint32_t i) { (*static_cast<const Body*>(body))(i); }, &body);
  }

  // The same, with several indices for each call if there are more than `pieces` indices for each thread, because
  // taking an index costs as much time as processing a short vector.
  template <typename Body>
  void each_several(uint32_t n, uint32_t pieces, const Body& body) {
    uint32_t several = std::max(1u, n / (pieces * static_cast<uint32_t>(count_)));
    each((n + several - 1) / several, [&](uint32_t piece) {
      for (uint32_t i = piece * several; i < std::min(n, (piece + 1) * several); i++) {
        body(i);
      }
    });
  }

 private:
  using Call = void (*)(const void*, uint32_t);

  explicit Threads(int count);
  void run(uint32_t n, Call call, const void* body);
  void work();
  void drain();

  int count_;
  std::mutex busy_;
  // The loop. It is written only while `unfinished_` is 0, and read only after an index was taken from `left_`.
  Call call_ = nullptr;
  const void* body_ = nullptr;
  // The indices that no thread has taken yet, and the bodies that have not returned.
  alignas(64) std::atomic<uint32_t> left_{0};
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  std::atomic<bool> failed_{false};
  // Incremented with each loop. Sleeping threads wait for a change.
  alignas(64) std::atomic<uint32_t> loops_{0};
};

} // namespace mlxrs
