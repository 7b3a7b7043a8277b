// Sums and gathers of a ring of two ranks.
//
// MLX's ring reduces in two passes, each of which hands its messages to threads that ask their socket for more without
// sleeping. Two ranks need one exchange: each sends all of its values and adds those of the other. The thread of the
// stream does it, and sleeps while it waits.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "core/guard.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/c/private/distributed_group.h"
#include "mlx/distributed/distributed_impl.h"
#include "mlxrs_ring.h"

namespace mlxrs {

namespace mxd = mlx::core::distributed;

// `is_collective` of ring.h knows its tasks by "RingGroup" in their names.
class PairRingGroup : public mxd::detail::GroupImpl {
 public:
  PairRingGroup(std::shared_ptr<GroupImpl> ring, int socket)
      : ring_(std::move(ring)), socket_(socket), is_first_(ring_->rank() == 0), chunk_(chunk_bytes) {}

  mx::Stream communication_stream(mx::StreamOrDevice s) override {
    return ring_->communication_stream(s);
  }
  int rank() override {
    return ring_->rank();
  }
  int size() override {
    return ring_->size();
  }
  std::shared_ptr<GroupImpl> split(int color, int key) override {
    return ring_->split(color, key);
  }

  void all_sum(const mx::array& input, mx::array& output, mx::Stream stream) override {
    if (input.nbytes() > largest) {
      return ring_->all_sum(input, output, stream);
    }
    switch (output.dtype()) {
      case mx::float32:
        return sum<float>(input, output, stream);
      case mx::float16:
        return sum<mx::float16_t>(input, output, stream);
      case mx::bfloat16:
        return sum<mx::bfloat16_t>(input, output, stream);
      default:
        return ring_->all_sum(input, output, stream);
    }
  }
  void all_gather(const mx::array& input, mx::array& output, mx::Stream stream) override {
    if (input.nbytes() > largest) {
      return ring_->all_gather(input, output, stream);
    }
    auto& encoder = mx::cpu::get_command_encoder(stream);
    encoder.set_input_array(input);
    encoder.set_output_array(output);
    encoder.dispatch([from = input.data<char>(), to = output.data<char>(), n = input.nbytes(), this] {
      std::memcpy(to + (is_first_ ? 0 : n), from, n);
      char* other = to + (is_first_ ? n : 0);
      exchange(from, n, [&](size_t begin, size_t end) { std::memcpy(other + begin, chunk_.data(), end - begin); });
    });
  }

  void all_max(const mx::array& input, mx::array& output, mx::Stream stream) override {
    ring_->all_max(input, output, stream);
  }
  void all_min(const mx::array& input, mx::array& output, mx::Stream stream) override {
    ring_->all_min(input, output, stream);
  }
  void send(const mx::array& input, int dst, mx::Stream stream) override {
    ring_->send(input, dst, stream);
  }
  void recv(mx::array& out, int src, mx::Stream stream) override {
    ring_->recv(out, src, stream);
  }
  void sum_scatter(const mx::array& input, mx::array& output, mx::Stream stream) override {
    ring_->sum_scatter(input, output, stream);
  }

 private:
  static constexpr size_t chunk_bytes = 1 << 18;
  // More bytes take less time in the ring, whose ranks add half of them each, on all of its connections.
  static constexpr size_t largest = 2 << 20;
  // A thread that has slept needs about this long to go on.
  static constexpr auto patience = std::chrono::microseconds(20);

  template <typename T>
  void sum(const mx::array& input, mx::array& output, mx::Stream stream) {
    auto& encoder = mx::cpu::get_command_encoder(stream);
    encoder.set_output_array(output);
    encoder.dispatch([from = input.data<T>(), to = output.data<T>(), n = input.nbytes(), this] {
      // `to` may be `from`. The values of rank 0 come first on both ranks, so that they have the same bits.
      auto own = reinterpret_cast<const char*>(from);
      auto other = reinterpret_cast<const T*>(chunk_.data());
      exchange(own, n, [&](size_t begin, size_t end) {
        size_t first = begin / sizeof(T), count = (end - begin) / sizeof(T);
        for (size_t i = 0; i < count; i++) {
          T a = from[first + i], b = other[i];
          to[first + i] = is_first_ ? a + b : b + a;
        }
      });
    });
  }

  // Sends `n` bytes and receives as many. `take` gets them in parts, by their first byte and the one behind the last, in
  // `chunk_`; the bytes at the same places have been sent by then. A rank that waits with a full chunk waits for its
  // bytes to be sent, and the other one, which has sent more, takes them.
  template <typename F>
  void exchange(const char* from, size_t n, F take) {
    size_t sent = 0, taken = 0, held = 0;
    auto last = std::chrono::steady_clock::now();
    while (sent < n || taken < n) {
      bool moved = false;
      if (sent < n) {
        moved |= advance(::send(socket_, from + sent, std::min(n - sent, chunk_bytes), flags), sent);
      }
      size_t wanted = std::min(chunk_bytes, n - taken);
      if (held < wanted) {
        auto got = ::recv(socket_, chunk_.data() + held, wanted - held, MSG_DONTWAIT);
        if (got == 0) {
          lost();
        }
        moved |= advance(got, held);
      }
      if (wanted > 0 && held == wanted && sent >= taken + held) {
        take(taken, taken + held);
        taken += held;
        held = 0;
        moved = true;
      }
      auto now = std::chrono::steady_clock::now();
      if (moved) {
        last = now;
      } else if (now - last > patience) {
        short events = (sent < n ? POLLOUT : 0) | (held < wanted ? POLLIN : 0);
        pollfd waits{socket_, events, 0};
        if (poll(&waits, 1, -1) < 0 && errno != EINTR) {
          lost();
        }
      }
    }
  }
  // Adds what a call has moved. False if it would have had to wait.
  static bool advance(ssize_t moved, size_t& count) {
    if (moved < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        lost();
      }
      return false;
    }
    count += moved;
    return moved > 0;
  }
  // MLX's text, which `fail_collective` of ring.h knows.
  [[noreturn]] static void lost() {
    throw std::runtime_error("[ring] connection to a peer was lost");
  }

#ifdef MSG_NOSIGNAL
  static constexpr int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
#else
  static constexpr int flags = MSG_DONTWAIT;
#endif

  std::shared_ptr<GroupImpl> ring_;
  int socket_;
  bool is_first_;
  // What was received and not taken. One collective runs at a time.
  std::vector<char> chunk_;
};

} // namespace mlxrs

extern "C" int mlxrs_ring_pair(mlx_distributed_group* group, int socket) {
  return mlxrs::guarded([=] {
    // Kept to the end of the process, like MLX's ring.
    static std::mutex mutex;
    static auto* pair = new std::shared_ptr<mlxrs::PairRingGroup>;
    std::lock_guard lock(mutex);
    auto& ring = mlx_distributed_group_get_(*group);
    if (*pair == nullptr) {
      *pair = std::make_shared<mlxrs::PairRingGroup>(ring.raw_group(), socket);
    }
    ring = mlxrs::mxd::Group(*pair);
  });
}
