// GPU memory, and the launch of kernels on MLX's streams.
//
// MLX adds each kernel to a CUDA graph and launches the graphs. That takes the host longer than launching kernels, and
// a kernel of a graph starts only when the previous one has ended. Here kernels are launched one by one, each before
// the previous one has ended (programmatic dependent launch): its blocks start, products load weights, and then the
// blocks wait (wait_for_previous in device.cuh).
#pragma once

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <vector>

#include "mlx/array.h"
#include "mlx/backend/cuda/device.h"
#include "mlx/stream.h"

#include "args.h"

namespace mlxrs::cuda {

namespace mx = mlx::core;

// Allocates an array on the device of a stream, from MLX's cache of buffers.
void allocate(mx::array& y, mx::Stream s);
void allocate(mx::array& y, size_t bytes, mx::Stream s);
void allocate_as(mx::array& y, mx::Strides strides, mx::array::Flags flags, mx::Stream s);
// Pinned host memory, which GPUs access over the bus without page faults. For a few bytes.
mx::allocator::Data host_memory(size_t bytes);
// Memory of the default GPU with a copy of `bytes` bytes of the host's memory at `from`. Waits for the stream's kernels and
// for the copy.
mx::allocator::Data copy_to_device(const void* from, size_t bytes);

// Freed bytes that the driver keeps for this process on a device, and gives out again.
size_t kept_memory(int device);

// Scratch memory for kernels. It is freed when the queued kernels have run.
mx::array scratch(size_t bytes, mx::Stream s);
// At least `count` words of zeros, at the same address for all kernels of a stream. Kernels use them as counters, and
// reset them to zero.
mx::array counters(size_t count, mx::Stream s);

// The array in row-major order: the array itself, or a copy that lives until the stream's kernels have run.
mx::array dense(const mx::array& a, mx::Stream s);
// The same for an array that the host has written and many kernels read. It is copied to the GPU once, so that the
// kernels do not read it over the bus.
mx::array resident(const mx::array& a, mx::Stream s);

// Whether kernels are launched directly, and not as nodes of MLX's CUDA graphs.
bool launches_directly();

// While an object of this class exists, the kernels of this thread are captured, and the arrays that they use are added
// to `kept`.
class Capturing {
 public:
  explicit Capturing(std::vector<mx::array>& kept);
  ~Capturing();
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;

  static bool now();
  static void keep(const mx::array& a);
};

// The positions that a kernel appends to a KV cache; a null address if it appends none.
struct Appended {
  const int32_t* offsets = nullptr;
  int tokens = 0;
  bool operator==(const Appended&) const = default;
};

// Dynamic shared memory that every kernel may use without being asked for it first (Launch::run_with).
constexpr unsigned small_shared = 32 << 10;

// The launch of one kernel. A kernel reads what earlier kernels of its stream have written.
class Launch {
 public:
  explicit Launch(mx::Stream s) : encoder_(mx::cu::get_command_encoder(s)), stream_(s) {}

  template <typename T>
  const T* read(const mx::array& a) {
    Capturing::keep(a);
    inputs_.push_back(a);
    return mx::gpu_ptr<T>(a);
  }
  template <typename T>
  T* write(mx::array& a) {
    Capturing::keep(a);
    outputs_.push_back(a);
    return mx::gpu_ptr<T>(a);
  }
  // read(dense(a)) and read(resident(a)).
  template <typename T>
  const T* read_dense(const mx::array& a) {
    return read_own<T>(dense(a, stream_));
  }
  template <typename T>
  const T* read_resident(const mx::array& a) {
    return read_own<T>(resident(a, stream_));
  }
  const void* read(const mx::array& a) {
    return read<char>(a);
  }
  const void* read_dense(const mx::array& a) {
    return read_dense<char>(a);
  }
  void* write(mx::array& a) {
    return write<char>(a);
  }
  // Keeps the array until the kernel has run. An allocation between this call and the launch may wait for all queued kernels,
  // after which MLX keeps no array of theirs, so the launch keeps it again.
  void keep(const mx::array& a) {
    Capturing::keep(a);
    encoder_.add_temporary(a);
    kept_.push_back(a);
  }
  // Declares that of each row of a KV cache, this kernel writes only the slots of `tokens` positions from `offsets` on.
  void append_from(const int32_t* offsets, int tokens) {
    appended_ = {offsets, tokens};
  }
  // Whether the previous kernel has declared the same. If so, the slots of earlier positions are older than that kernel.
  bool follows_append(const int32_t* offsets, int tokens) const;
  // Whether what this kernel reads at an address that read() returned is older than the previous kernel, which may still be
  // writing when this one starts. True for null.
  bool is_old(const void* address) const;
  // Whether this kernel may run at the same time as the previous one: that one is a kernel of the
  // shim, and neither writes memory that the other uses. Call it after all read() and write()
  // calls. The kernel must then use start_beside_previous.
  bool is_independent();
  // Makes all blocks along y a cluster (Hopper and later). At most 8.
  void use_clusters(unsigned blocks) {
    cluster_ = blocks;
  }
  // For a kernel that MLX counts once more, when the capture around it ends: it runs as a part of one of MLX's collectives.
  void counts_twice() {
    is_counted_twice_ = true;
  }
  // The major compute capability of the device: 9 is Hopper.
  int generation() const {
    return encoder_.device().compute_capability_major();
  }

  // Launches a kernel with these arguments. `module` is a name of embedded.h.
  template <typename... Args>
  void run(const char* module, const std::string& kernel, dim3 blocks, int threads, Args... args) {
    run_with(0, module, kernel, blocks, threads, args...);
  }
  // Launches a kernel with `shared` bytes of dynamic shared memory, in addition to its static shared memory. Amounts above
  // small_shared must be the same in all launches of the kernel.
  template <typename... Args>
  void run_with(
      unsigned shared, const char* module, const std::string& kernel, dim3 blocks, int threads, Args... args) {
    void* addresses[] = {&args...};
    start(find(module, kernel, shared), blocks, static_cast<unsigned>(threads), shared, addresses);
  }

 private:
  template <typename T>
  const T* read_own(const mx::array& a) {
    keep(a);
    return read<T>(a);
  }
  // Whether the previous kernel of the stream is one of the shim's kernels, which start early.
  bool follows_ours() const;
  bool is_unsettled(const mx::array& a) const;
  CUfunction find(const char* module, const std::string& kernel, unsigned shared);
  void start(CUfunction kernel, dim3 blocks, unsigned threads, unsigned shared, void** args);

  mx::cu::CommandEncoder& encoder_;
  mx::Stream stream_;
  std::vector<mx::array> inputs_, outputs_, kept_;
  Appended appended_;
  bool is_beside_ = false, is_counted_twice_ = false;
  unsigned cluster_ = 0;
};

// The address and strides of the heads of an array [B, H, L, D], or of a copy if the elements of a head are not
// adjacent. With unit > 1, kernels read `unit` elements (16 bytes) at a time, and each head begins at a multiple of 16
// bytes.
Heads heads_of(Launch& launch, const mx::array& a, mx::Stream s, int unit = 1);

// Allocates `to`, which has the shape of `from`, and copies the elements in row-major order.
void copy(const mx::array& from, mx::array& to, mx::Stream s);
// Fills the array with zeros.
void fill_with_zeros(mx::array& a, mx::Stream s);

// "bf16", "f16" or "f32".
inline const char* name_of(mx::Dtype dtype) {
  return dtype == mx::bfloat16 ? "bf16" : dtype == mx::float16 ? "f16" : "f32";
}

// Whether there is such a kernel for the stream's device: some use instructions of one architecture, which a build may lack.
bool has_kernel(mx::Stream s, const char* module, const char* kernel);
// Whether the stream's device can run our kernels.
bool runs_kernels(mx::Stream s);
// The same, unless MLX_CUDA_KERNELS=off.
bool is_usable(mx::Stream s);

// log2(group / 32), for LinearArgs and LookupArgs. Decoders of groups of 16 do not use it.
inline int group_bits_of(int group) {
  return std::countr_zero(static_cast<unsigned>(std::max(group / 32, 1)));
}

// The multiprocessors of an H100, for the choice of tiles. On other GPUs the choice may be slower, but no result differs.
constexpr int processors = 132;

// The number of blocks for `tasks` tasks.
inline unsigned blocks_of(int64_t tasks, int64_t per_block) {
  return static_cast<unsigned>((tasks + per_block - 1) / per_block);
}

} // namespace mlxrs::cuda
