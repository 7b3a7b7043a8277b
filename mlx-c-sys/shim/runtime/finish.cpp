// Waits at the program's exit for tasks of CPU streams. Static objects are destroyed at exit, among them MLX's own
// allocator where ours does not replace it, and a stream that computes after that corrupts the heap. This would happen
// to each program that exits after queuing a step whose result it does not need.
#include <cstdlib>
#include <future>

#include "core/guard.h"
#include "mlx/allocator.h"
#include "mlx/scheduler.h"
#include "mlx/stream.h"
#include "outcomes.h"
#include "worker.h"

namespace {

namespace mx = mlx::core;

// Runs after the destruction of the calling thread's thread-local objects, so it must not use them. MLX keeps the
// encoders of CPU streams in such an object, and our scheduler looks for them there.
void finish() {
#ifdef __linux__
  mlxrs::wait_for_workers();
#else
  for (mx::Stream s : mx::get_streams()) {
    if (s.device != mx::Device::cpu) {
      continue;
    }
    try {
      auto reached = std::make_shared<std::promise<void>>();
      auto end = reached->get_future();
      mx::scheduler::enqueue(s, [reached] { reached->set_value(); });
      end.wait();
    } catch (...) {
      // The stream has no thread, so there is nothing to wait for.
    }
  }
#endif
}

} // namespace

extern "C" int mlxrs_finish_at_exit(void) {
  return mlxrs::guarded([] {
    static const bool registered = [] {
      // Exit handlers run in the reverse order of construction, so the wait comes before the destruction of both
      // objects.
      mx::allocator::allocator();
      mx::scheduler::scheduler();
      return std::atexit(finish) == 0;
    }();
    static_cast<void>(registered);
#ifdef __linux__
    mlxrs::prepare_outcomes();
    mlxrs::prepare_workers();
#endif
  });
}
