// The memory of the ranks, and the node that adds their arrays.
#include "ops/peers/peers.h"

#include <cstring>
#include <mutex>

#include "args.h"
#include "cuda/driver.h"
#include "cuda/launch.h"
#include "mlxrs_peers.h"

namespace mlxrs::ops {
namespace {

using cuda::check;
using cuda::Driver;
using cuda::PeersArgs;

static_assert(sizeof(CUipcMemHandle) == MLXRS_PEERS_HANDLE && PeersArgs::most == MLXRS_PEERS_MOST);

// Never freed: other processes may write to it as long as they live.
struct Peers {
  std::mutex mutex;
  CUdeviceptr own = 0;
  int rank = 0, size = 0;
  char* memory[PeersArgs::most] = {};
};

Peers& peers() {
  static auto* peers = new Peers;
  return *peers;
}

// Makes the GPU current, on which streams without a choice compute.
void use_device() {
  mx::cu::device(mx::Device(mx::Device::gpu, 0)).make_current();
}

class SumOfPeers : public NodeWith<> {
 public:
  using NodeWith::NodeWith;

  // Two sums of one array are two calls on every rank.
  bool is_equivalent(const mx::Primitive&) const override {
    return false;
  }
  bool repeats(const mx::Primitive&) const override {
    return true;
  }
  void encode(const Arrays&, Arrays&) override {
    throw std::logic_error("sums of peers are nodes on GPUs only");
  }
  void encode_cuda(const Arrays& in, Arrays& out) override {
    auto s = stream();
    cuda::allocate(out[0], s);
    cuda::Launch launch(s);
    PeersArgs args{};
    args.x = launch.read_dense(in[0]);
    if (reinterpret_cast<uintptr_t>(args.x) % 16 != 0) {
      mx::array aligned(in[0].shape(), in[0].dtype(), nullptr, {});
      cuda::copy(in[0], aligned, s);
      launch.keep(aligned);
      args.x = launch.read(aligned);
    }
    args.y = launch.write(out[0]);
    args.bytes = static_cast<int64_t>(in[0].nbytes());
    // A small part of a block is sent sooner, and many blocks use more of the connection.
    int64_t blocks = std::clamp<int64_t>(args.bytes / (2 << 10), 1, PeersArgs::blocks);
    args.per_block = static_cast<int>((args.bytes / 16 + blocks - 1) / blocks * 16);
    const auto& all = peers();
    args.rank = all.rank, args.size = all.size;
    std::copy(std::begin(all.memory), std::end(all.memory), std::begin(args.memory));
    launch.run("peers/peers", std::string("peers_") + cuda::name_of(in[0].dtype()), cuda::blocks_of(args.bytes, args.per_block),
               PeersArgs::threads, args);
  }
  mx::array plain(const Arrays&) override {
    throw std::invalid_argument("sums of peers have no other form");
  }
  const char* name() const override {
    return "SumOfPeers";
  }
};

} // namespace

void offer_to_peers(unsigned char* handle) {
  auto& all = peers();
  std::lock_guard lock(all.mutex);
  const auto& driver = Driver::get();
  use_device();
  if (all.own == 0) {
    check(driver.allocate_now(&all.own, sizeof(cuda::PeersMemory)), "memory for other GPUs");
    check(driver.fill(all.own, 0, sizeof(cuda::PeersMemory)), "memory for other GPUs");
    check(driver.wait_for_device(), "memory for other GPUs");
  }
  CUipcMemHandle own;
  check(driver.offer(&own, all.own), "memory for other GPUs cannot be shared");
  std::memcpy(handle, &own, sizeof own);
}

void open_peers(const unsigned char* handles, int rank, int size) {
  auto& all = peers();
  std::lock_guard lock(all.mutex);
  if (size < 2 || size > PeersArgs::most || rank < 0 || rank >= size || all.own == 0 || all.size != 0) {
    throw std::invalid_argument("memory of peers: there is none, it is open, or there are not 2 to 8 ranks");
  }
  const auto& driver = Driver::get();
  use_device();
  for (int other = 0; other < size; other++) {
    CUdeviceptr at = all.own;
    if (other != rank) {
      CUipcMemHandle handle;
      std::memcpy(&handle, handles + other * sizeof handle, sizeof handle);
      check(driver.open(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "memory of another GPU cannot be opened");
    }
    all.memory[other] = reinterpret_cast<char*>(at);
  }
  all.rank = rank;
  all.size = size;
}

bool peers_take(const mx::array& x, mx::Stream s) {
  const auto& all = peers();
  size_t most = static_cast<size_t>(PeersArgs::blocks) * PeersArgs::chunk;
  return all.size > 1 && s.device == mx::Device::gpu && cuda::is_usable(s) && !x.is_tracer() && x.size() > 0 && x.nbytes() % 16 == 0 &&
      x.nbytes() <= most / static_cast<size_t>(all.size - 1) &&
      (x.dtype() == mx::bfloat16 || x.dtype() == mx::float16 || x.dtype() == mx::float32);
}

mx::array sum_of_peers(const mx::array& x, mx::Stream s) {
  if (!peers_take(x, s)) {
    throw std::invalid_argument("sums of peers: the memory is not open, or the array is not for it");
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<SumOfPeers>(s), {x});
}

} // namespace mlxrs::ops
