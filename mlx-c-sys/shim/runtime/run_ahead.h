// Limits how many nodes a thread queues before it waits for the stream.
#pragma once

#include <cstddef>

#include "mlx/stream.h"

namespace mlxrs {

// Must be called after a node with `bytes` bytes of outputs was queued on `stream`. If it and the queued nodes before
// it are small, MLX does not count it (see run_ahead.cpp).
void run_ahead(mlx::core::Stream stream, size_t bytes);

} // namespace mlxrs
