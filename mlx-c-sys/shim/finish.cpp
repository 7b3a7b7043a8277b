// MLX takes its allocator down at the end of a program while the threads of its streams may still compute, which then
// corrupts the heap. A program ends in the middle of work as soon as it queues a step ahead and does not want its result.
#include <cstdlib>
#include <future>

#include "guard.h"
#include "mlx/allocator.h"
#include "mlx/scheduler.h"
#include "mlx/stream.h"

namespace {

namespace mx = mlx::core;

void finish() {
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
      // A stream whose thread is gone has nothing to wait for.
    }
  }
}

} // namespace

extern "C" int mlxrs_finish_at_exit(void) {
  return mlxrs::guarded([] {
    static const bool registered = [] {
      // What is made first is taken down last: both of them, then the wait.
      mx::allocator::allocator();
      mx::scheduler::scheduler();
      return std::atexit(finish) == 0;
    }();
    static_cast<void>(registered);
  });
}
