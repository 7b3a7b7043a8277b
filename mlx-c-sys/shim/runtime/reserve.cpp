// See reserve.h.
#include "reserve.h"

#ifdef __linux__

#include <sys/mman.h>

#include <atomic>
#include <mutex>
#include <new>

namespace mlxrs {

namespace {

// Memory for small objects: address space of its own, or else memory from std::malloc. Nothing is written there, so it
// takes no physical memory. A process without more address space may still have free memory in a thread's malloc arena.
struct Room {
  void* at = nullptr;
  bool is_mapped = false;

  bool take(size_t bytes) {
    at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    is_mapped = at != MAP_FAILED;
    if (!is_mapped) {
      at = std::malloc(bytes);
    }
    return at != nullptr;
  }
  void release(size_t bytes) {
    if (is_mapped) {
      munmap(at, bytes);
    } else {
      std::free(at);
    }
    at = nullptr;
  }
};

// The reserve is released in pieces.
constexpr size_t pieces = 4, piece_bytes = 1 << 19;
// The bytes that `has_headroom` tests for.
constexpr size_t headroom_bytes = 1 << 20;

std::mutex mutex;
Room reserve[pieces];
std::atomic<bool> is_open{false};
// The number of pieces that were released, and the last of these numbers that this thread has seen.
std::atomic<unsigned> openings{0};
thread_local constinit unsigned tried = 0;

// Fills the reserve. The caller must hold the mutex. Returns whether the reserve is complete.
bool take() {
  for (auto& piece : reserve) {
    if (piece.at == nullptr && !piece.take(piece_bytes)) {
      return false;
    }
  }
  return true;
}

// The new-handler: releases a piece. When it returns, `operator new` tries again.
void open() {
  std::lock_guard lock(mutex);
  if (tried != openings) {
    // Another thread has released a piece meanwhile.
    tried = openings;
    return;
  }
  for (auto& piece : reserve) {
    if (piece.at != nullptr) {
      piece.release(piece_bytes);
      is_open = true;
      tried = ++openings;
      return;
    }
  }
  throw std::bad_alloc();
}

} // namespace

void keep_reserve() {
  std::lock_guard lock(mutex);
  if (std::get_new_handler() == nullptr && take()) {
    std::set_new_handler(open);
  }
}

bool is_memory_short() {
  if (!is_open.load(std::memory_order_relaxed)) {
    return false;
  }
  std::lock_guard lock(mutex);
  is_open = !take();
  return is_open;
}

bool has_headroom() {
  Room room;
  if (!room.take(headroom_bytes)) {
    return false;
  }
  room.release(headroom_bytes);
  return true;
}

} // namespace mlxrs

#endif
