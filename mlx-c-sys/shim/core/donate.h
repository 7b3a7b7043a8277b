// Buffers that may be written although other arrays hold them (see donate.cpp).
#pragma once

#include <utility>

#include "mlx/array.h"
#include "mlx/primitives.h"
#include "mlx/stream.h"

namespace mlxrs {

// Whether a node with these inputs may write in[index] in place, as its caller has promised. The array must be dense
// and begin at the start of a buffer that MLX owns. No other input may be a view of the buffer, and no reader of this
// thread (mlxrs_count_reader) may look at memory.
bool may_overwrite(const std::vector<mlx::core::array>& in, size_t index);

// The lazy array `head` with permission for its topmost operation to write into `source`, if that is one of its inputs
// and of the same shape and type (mlxrs_update_in_place).
mlx::core::array update_in_place(mlx::core::array head, const mlx::core::array& source);

// Of a primitive that update_in_place has made: its operation, and the index of the input that it writes. Null for others.
std::pair<const mlx::core::Primitive*, size_t> updates_in_place(const mlx::core::Primitive& primitive);

// Whether this thread has updated, or has queued an update of, the array's buffer in place.
bool is_updated(const mlx::core::array& a);

// Records that `stream` will write into the array's buffer, so that mlxrs_wait_for_updates waits for it.
void note_written(const mlx::core::array& a, mlx::core::Stream stream);

} // namespace mlxrs
