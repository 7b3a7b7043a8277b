#include "group.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "mlx/distributed/distributed_impl.h"

#include "cuda/driver.h"
#include "cuda/launch.h"
#include "peers.h"

namespace mlxrs::cuda {
namespace {

namespace mxd = mx::distributed;

// The largest message of all ranks together. On H200 with NVLink a sum of 1 MiB of two ranks takes less time than NCCL's, and
// one of 512 KiB of four as long.
constexpr int64_t most_bytes = 2 << 20;

// The bytes of a message of one rank, and the units of the memory for it.
int64_t most_bytes_of(int ranks) {
  return most_bytes / ranks / 8 * 8;
}

// This rank's memory, which is kept to the end of the process: peers write to it.
struct Memory {
  CUdeviceptr at = 0;
  PeerArgs args{};
} memory;

class PeerGroup : public mxd::detail::GroupImpl {
 public:
  PeerGroup(std::shared_ptr<GroupImpl> nccl, const PeerArgs& args) : nccl_(std::move(nccl)), args_(args) {}

  mx::Stream communication_stream(mx::StreamOrDevice s) override {
    return nccl_->communication_stream(s);
  }
  int rank() override {
    return nccl_->rank();
  }
  int size() override {
    return nccl_->size();
  }
  std::shared_ptr<GroupImpl> split(int color, int key) override {
    return nccl_->split(color, key);
  }

  void all_sum(const mx::array& input, mx::array& output, mx::Stream stream) override {
    auto dtype = input.dtype();
    bool is_float = dtype == mx::float32 || dtype == mx::float16 || dtype == mx::bfloat16;
    if (!is_float || !fits(input)) {
      return nccl_->all_sum(input, output, stream);
    }
    exchange(std::string("sum_") + name_of(dtype), input, output, stream);
  }
  void all_gather(const mx::array& input, mx::array& output, mx::Stream stream) override {
    if (!fits(input)) {
      return nccl_->all_gather(input, output, stream);
    }
    exchange("gather", input, output, stream);
  }

  void all_max(const mx::array& input, mx::array& output, mx::Stream stream) override {
    nccl_->all_max(input, output, stream);
  }
  void all_min(const mx::array& input, mx::array& output, mx::Stream stream) override {
    nccl_->all_min(input, output, stream);
  }
  void send(const mx::array& input, int dst, mx::Stream stream) override {
    nccl_->send(input, dst, stream);
  }
  void recv(mx::array& out, int src, mx::Stream stream) override {
    nccl_->recv(out, src, stream);
  }
  void sum_scatter(const mx::array& input, mx::array& output, mx::Stream stream) override {
    nccl_->sum_scatter(input, output, stream);
  }

 private:
  // The same on all ranks: it depends on the shape and the dtype only.
  bool fits(const mx::array& x) const {
    auto bytes = static_cast<int64_t>(x.nbytes());
    return bytes > 0 && bytes % 8 == 0 && bytes <= 8 * args_.capacity;
  }

  void exchange(const std::string& kernel, const mx::array& x, mx::array& y, mx::Stream s) {
    Launch launch(s);
    auto args = args_;
    args.x = launch.read(x);
    args.y = launch.write(y);
    args.units = static_cast<int64_t>(x.nbytes() / 8);
    launch.counts_twice();
    launch.run("peers/peers", kernel, std::min<unsigned>(blocks_of(args.units, peer_threads), processors), peer_threads, args);
  }

  std::shared_ptr<GroupImpl> nccl_;
  PeerArgs args_;
};

} // namespace

void offer_to_peers(int ranks, uint8_t* handle) {
  if (ranks > most_peers) {
    throw std::runtime_error("more ranks than have a place in each other's memory");
  }
  // MLX captures its own graphs between kernels that are launched directly.
  if (!launches_directly() || !runs_kernels(mx::default_stream(mx::Device::gpu))) {
    throw std::runtime_error("kernels of this library do not run here");
  }
  const auto& driver = Driver::get();
  if (memory.at == 0) {
    // After the units, the clock.
    size_t units = 2 * ranks * most_bytes_of(ranks) / 8, bytes = 16 * units + 16;
    check(driver.allocate_shared(&memory.at, bytes), "no memory for exchanges with other GPUs");
    check(driver.fill(memory.at, 0, bytes), "memory for exchanges with other GPUs");
    check(driver.wait_for_stream(nullptr), "memory for exchanges with other GPUs");
    memory.args.capacity = most_bytes_of(ranks) / 8;
    memory.args.clock = reinterpret_cast<uint32_t*>(memory.at + 16 * units);
  }
  CUipcMemHandle made;
  check(driver.get_handle(&made, memory.at), "the memory of this GPU has no handle for other processes");
  std::memcpy(handle, &made, sizeof made);
}

void map_peers(int rank, int ranks, const uint8_t* handles) {
  auto& args = memory.args;
  for (int other = 0; other < ranks; other++) {
    CUdeviceptr at = memory.at;
    if (other != rank) {
      CUipcMemHandle handle;
      std::memcpy(&handle, handles + other * sizeof handle, sizeof handle);
      check(
          Driver::get().open_handle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          "the memory of another GPU cannot be mapped");
    }
    args.memory[other] = reinterpret_cast<void*>(at);
  }
  args.rank = rank, args.ranks = ranks;
}

mxd::Group with_peers(const mxd::Group& nccl) {
  static auto* group = new std::shared_ptr<PeerGroup>(std::make_shared<PeerGroup>(nccl.raw_group(), memory.args));
  return mxd::Group(*group);
}

} // namespace mlxrs::cuda
