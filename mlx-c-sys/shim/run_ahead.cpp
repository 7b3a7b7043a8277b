// MLX counts each tenth task that is handed to a CPU stream until it is done, and a thread that evaluates waits while
// more than ten of them are under way, which is some fifty nodes. So who hands over the five hundred of the next decode
// step sleeps most of the time, and is woken whenever a counted task is done. That takes the stream's thread 20
// microseconds each time on a virtual machine, and a core from those that multiply: a tenth of a step of one row.
//
// The bound is there for memory, because what a stream has not got to yet has its outputs already. Where these are small,
// a thread may be further ahead. MLX's numbers cannot be changed, but its count can: down when small nodes are handed
// over, and up again when the stream has got there.
#include "run_ahead.h"

#include <atomic>
#include <utility>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/scheduler.h"

namespace mlxrs {

namespace mx = mlx::core;

namespace {

// What outputs of a small node are less than: more is better written where others have just been, which is in the caches.
// And what all that are not counted may take, and what a node takes besides.
constexpr size_t small = 1 << 18, most = 1 << 26, overhead = 1 << 12;
// A node's task, one that MLX adds to keep its inputs, and that of a view beside it.
constexpr int tasks_of_node = 3;

std::atomic<size_t> uncounted{0};

} // namespace

void run_ahead(mx::Stream stream, size_t bytes) {
  thread_local int tasks = 0;
  thread_local size_t taken = 0;
  if (bytes >= small || uncounted.load(std::memory_order_relaxed) > most) {
    return;
  }
  tasks += tasks_of_node;
  taken += bytes + overhead;
  if (tasks < mx::cpu::DISPATCHES_PER_TASK) {
    return;
  }
  tasks -= mx::cpu::DISPATCHES_PER_TASK;
  size_t now = std::exchange(taken, 0);
  uncounted.fetch_add(now, std::memory_order_relaxed);
  mx::scheduler::enqueue(stream, [stream, now] {
    uncounted.fetch_sub(now, std::memory_order_relaxed);
    mx::scheduler::notify_new_task(stream);
  });
  mx::scheduler::notify_task_completion(stream);
}

} // namespace mlxrs
