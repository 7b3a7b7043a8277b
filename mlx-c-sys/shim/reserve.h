// A reserve of memory for small C++ objects, so that they do not fail one by one when memory runs out.
#pragma once

#include <cstdlib>

namespace mlxrs {

// Takes the reserve, and lets `operator new` open it when the system has no memory. Linux only.
//
// MLX's bookkeeping does not survive a failed allocation everywhere: a task that cannot be queued stays counted, and an
// event that cannot be signalled is waited for without end. With the reserve those objects can be allocated, and the
// next array is refused instead, which MLX handles well.
void keep_reserve();

// Whether memory is short: the reserve was opened and cannot be taken back.
bool is_memory_short();

// Whether there is room for small objects of any kind. Those of C and of threads do not come from `operator new`, and
// may end the process if they fail. Costs two system calls.
bool has_headroom();

} // namespace mlxrs
