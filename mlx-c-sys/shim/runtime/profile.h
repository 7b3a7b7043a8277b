// Measures the time of nodes on CPU streams.
#pragma once

#include "mlx/stream.h"

namespace mlxrs {

// Whether a profile is running (mlxrs_profile_start).
bool is_profiled();
// Queues the start or end of a node after the stream's earlier tasks (see profile.cpp).
void node_begins(mlx::core::Stream stream);
void node_ends(mlx::core::Stream stream, const char* name);

// Queues the tasks of a node with `encode`, timed if a profile is running.
template <typename Encode>
void timed(mlx::core::Stream stream, const char* name, const Encode& encode) {
  if (!is_profiled()) {
    return encode();
  }
  node_begins(stream);
  encode();
  node_ends(stream, name);
}

} // namespace mlxrs
