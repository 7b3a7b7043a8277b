// A reserve of memory for small C++ objects, so that their allocations succeed when memory runs out.
#pragma once

#include <cstdlib>

namespace mlxrs {

// Fills the reserve, and lets `operator new` release it when the system has no memory. Linux only.
//
// MLX's bookkeeping does not survive all failed allocations: a task that cannot be queued stays counted, and an event
// that cannot be signalled is waited for without end. With the reserve these small objects can be allocated, and the
// next array is refused instead, which MLX handles well.
void keep_reserve();

// Whether memory is short: the reserve was released and cannot be filled again.
bool is_memory_short();

// Whether there is memory for small objects of any kind. Objects of C code and threads are not allocated with `operator
// new`, and may end the process if they cannot be allocated. Costs two system calls.
bool has_headroom();

} // namespace mlxrs
