// Which buffers may be written although others hold them. See donate.cpp.
#pragma once

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlxrs {

// Whether in[index] may be written in place by a node with these inputs, as its caller has promised: it is dense and from
// the start of a buffer of MLX's own, no other input is a view of that, and this thread is not between mlxrs_reading(true) and (false).
bool may_overwrite(const std::vector<mlx::core::array>& in, size_t index);

// Records that work on `stream` will write into the array's buffer: mlxrs_array_settle waits for it.
void note_written(const mlx::core::array& a, mlx::core::Stream stream);

} // namespace mlxrs
