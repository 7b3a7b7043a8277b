// How far a thread may be ahead of the stream that it gives work to.
#pragma once

#include <cstddef>

#include "mlx/stream.h"

namespace mlxrs {

// To be called when a node with so many bytes of outputs has been given to `stream`: it does not count among the tasks for which
// MLX makes threads wait, if it and others before it are small. See run_ahead.cpp.
void run_ahead(mlx::core::Stream stream, size_t bytes);

} // namespace mlxrs
