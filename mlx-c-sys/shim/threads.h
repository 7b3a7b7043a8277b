// A few threads that share out one loop at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace mlxrs {

// The caller always works too, and waits for what others have begun, never for a thread to wake: a loop ends at the
// latest when the caller has done all of it. So a busy machine costs speed only, and a child after fork(), which has
// no threads but the caller, still works.
class Threads {
 public:
  // The process's threads: MLX_CPU_THREADS of them, or as many as it may use cores. They are never joined: at the end
  // of the process they sleep or spin, and hold nothing.
  // Throws std::invalid_argument when the variable is no number from 1 to 1024.
  static Threads& shared();

  // How many work at most, with the caller.
  int count() const {
    return count_;
  }

  // Calls body(i) for each i in [0, n), on any threads, and returns when all have returned. Loops that are begun
  // while another runs, also in its body, are done by their caller alone. What a body throws is dropped, and std::bad_alloc is thrown
  // in its place.
  template <typename Body>
  void each(uint32_t n, const Body& body) {
    run(n, [](const void* body, uint32_t i) { (*static_cast<const Body*>(body))(i); }, &body);
  }

  // The same, several indices at a time where there are more than `pieces` for each thread: taking one costs as much as
  // a short vector.
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
  // The loop. Written only while `unfinished_` is 0, read only after taking an index from `left_`.
  Call call_ = nullptr;
  const void* body_ = nullptr;
  // Indices that nobody has taken yet, and bodies that have not returned.
  alignas(64) std::atomic<uint32_t> left_{0};
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  std::atomic<bool> failed_{false};
  // Changes with every loop: what sleepers wait on.
  alignas(64) std::atomic<uint32_t> loops_{0};
};

} // namespace mlxrs
