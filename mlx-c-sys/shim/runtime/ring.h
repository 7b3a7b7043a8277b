// Failures of MLX's ring, whose collectives are tasks of CPU streams.
//
// When a neighbour closes its connection, MLX fails the collective that uses the connection, and ends the thread that
// serves it. A later collective on the connection would wait for ever, and so would ranks that are not neighbours of the
// one that died. So the first failure shuts all connections of this rank: each neighbour fails in turn, around the ring,
// and no later collective is run.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace mlxrs {

// Whether a task is a collective of a ring that is watched (mlxrs_ring_watch).
bool is_collective(const std::function<void()>& task);

// Why the ring was lost; null while it works.
std::shared_ptr<std::string> ring_lost() noexcept;

// A collective was not run because what it reads has failed. The other ranks wait for it: shuts the connections.
void miss_collective(const std::string& reason) noexcept;

// A collective has failed with MLX's error `text`. If a connection was lost, shuts all of them. Returns the text to
// report, or null if it is `text` or there is no memory for another.
std::shared_ptr<std::string> fail_collective(const char* text) noexcept;

} // namespace mlxrs
