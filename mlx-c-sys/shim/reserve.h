// A reserve of room for the small objects of C++, so that they do not fail one by one when memory ends.
#pragma once

#include <cstdlib>

namespace mlxrs {

// Takes the reserve, and has `operator new` open it where the system has no memory. Linux only.
//
// MLX's bookkeeping does not survive a failed allocation everywhere: a task that cannot be queued stays counted, and
// an event that cannot be signalled is waited for without end. With the reserve those objects are made, and the next
// array is refused instead, which MLX handles well.
void keep_reserve();

// Whether memory is short: the reserve was opened and cannot be taken back.
bool is_memory_short();

// Whether there is room for small objects of any kind. Those of C and of threads, which do not come from
// `operator new`, may end the process where they fail. Costs two system calls.
bool has_headroom();

} // namespace mlxrs
