// Failures of MLX's ring (see ring.h).
#include "runtime/ring.h"

#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/guard.h"
#include "mlx/c/private/string.h"
#include "mlxrs_ring.h"

namespace {

using Text = std::shared_ptr<std::string>;

struct Connection {
  int socket, rank;
};

// The ring of this process. MLX makes one at most, and keeps it to the end of the process.
struct Ring {
  std::mutex mutex;
  std::string name;
  std::vector<Connection> connections;
  Text lost;

  // Called with `mutex` locked. Keeps the first reason.
  const Text& lose(const std::string& reason) {
    if (lost == nullptr) {
      lost = std::make_shared<std::string>(name + ": " + reason);
    }
    for (const auto& connection : connections) {
      shutdown(connection.socket, SHUT_RDWR);
    }
    return lost;
  }
  // The rank of a neighbour whose connection has ended, or -1.
  int closed() const {
    for (const auto& connection : connections) {
      char byte;
      auto got = recv(connection.socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        return connection.rank;
      }
    }
    return -1;
  }
};

// Never destroyed, because streams work while a program ends.
Ring& ring() {
  static auto* ring = new Ring;
  return *ring;
}
std::atomic<bool> is_watched = false;

} // namespace

namespace mlxrs {

bool is_collective(const std::function<void()>& task) {
  return is_watched.load(std::memory_order_relaxed) && std::strstr(task.target_type().name(), "RingGroup") != nullptr;
}

Text ring_lost() noexcept {
  std::lock_guard lock(ring().mutex);
  return ring().lost;
}

void miss_collective(const std::string& reason) noexcept {
  std::lock_guard lock(ring().mutex);
  try {
    ring().lose("a collective was not run, because what it reads has failed: " + reason);
  } catch (const std::bad_alloc&) {
    static const auto no_memory = std::make_shared<std::string>("std::bad_alloc");
    ring().lost = no_memory;
    for (const auto& connection : ring().connections) {
      shutdown(connection.socket, SHUT_RDWR);
    }
  }
}

Text fail_collective(const char* text) noexcept {
  std::lock_guard lock(ring().mutex);
  try {
    if (std::strstr(text, "connection to a peer was lost") == nullptr) {
      return nullptr;
    }
    if (ring().lost != nullptr) {
      return ring().lost;
    }
    int rank = ring().closed();
    auto to = rank < 0 ? std::string("a neighbour") : "rank " + std::to_string(rank);
    return ring().lose("the connection to " + to + " was lost");
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

} // namespace mlxrs

extern "C" int mlxrs_ring_watch(const char* name, const int* sockets, const int* ranks, size_t n) {
  return mlxrs::guarded([=] {
    std::lock_guard lock(ring().mutex);
    ring().name = name;
    for (size_t i = 0; i < n; i++) {
      ring().connections.push_back({sockets[i], ranks[i]});
    }
    is_watched = true;
  });
}

extern "C" int mlxrs_ring_shut(const char* reason) {
  return mlxrs::guarded([=] {
    std::lock_guard lock(ring().mutex);
    ring().lose(reason);
  });
}

extern "C" int mlxrs_ring_lost(mlx_string* res) {
  return mlxrs::guarded([=] {
    auto lost = mlxrs::ring_lost();
    mlx_string_set_(*res, lost == nullptr ? "" : *lost);
  });
}
