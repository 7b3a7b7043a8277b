// Lets a thread queue more nodes than MLX allows, if their outputs are small.
//
// MLX counts every tenth task of a CPU stream from its queuing to its end. While more than ten are counted, which is
// about fifty nodes, the thread that evaluates sleeps, and the end of each counted task wakes it. A decode step has
// five hundred nodes, so that thread sleeps and wakes most of the time. On a virtual machine each wake-up costs the
// stream's thread 20 microseconds, and takes a core from the matrix products: in total a tenth of a decode step of one
// row.
//
// The limit exists because the outputs of queued nodes are allocated already. Small outputs need no such limit. MLX's
// limit cannot be changed, but the count can: it is decreased when small nodes are queued, and increased again when the
// stream reaches them. It is the count of the stream, or of all streams where MLX counts (scheduler.cpp).
#include "run_ahead.h"

#include <atomic>
#include <utility>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/scheduler.h"

#include "worker.h"

namespace mlxrs {

namespace mx = mlx::core;

namespace {

// The outputs of a small node have less than `small` bytes. Larger outputs are better written to memory that was just
// freed, because it is still in the CPU's caches. The outputs of all uncounted nodes have at most `most` bytes; each
// node adds `overhead` bytes.
constexpr size_t small = 1 << 18, most = 1 << 26, overhead = 1 << 12;
// The tasks of a node: its own, one that MLX adds to keep its inputs alive, and one for a view.
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
#ifdef __linux__
  if (Worker* worker = counting_worker(stream)) {
    worker->push({[worker, now] {
      uncounted.fetch_sub(now, std::memory_order_relaxed);
      worker->count(1);
    }, nullptr});
    return worker->count(-1);
  }
#endif
  mx::scheduler::enqueue(stream, [stream, now] {
    uncounted.fetch_sub(now, std::memory_order_relaxed);
    mx::scheduler::notify_new_task(stream);
  });
  mx::scheduler::notify_task_completion(stream);
}

} // namespace mlxrs
