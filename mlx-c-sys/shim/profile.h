// How long nodes take on CPU streams.
#pragma once

#include "mlx/stream.h"

namespace mlxrs {

// Whether anybody has asked for it (mlxrs_profile_start).
bool is_profiled();
// Behind what the stream has been given already: a node begins, or ends. See profile.cpp.
void node_begins(mlx::core::Stream stream);
void node_ends(mlx::core::Stream stream, const char* name);

// Gives a node's work to the stream by `encode`, timed if that is wanted.
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
