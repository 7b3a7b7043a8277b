// Memory of a GPU, and the launch of kernels on MLX's streams.
//
// MLX adds each kernel to a CUDA graph, and launches the graphs. That takes the host longer than launching kernels, and a kernel of a graph starts
// when the one before it has ended. Here kernels are launched one by one, each before the one before it has ended (programmatic dependent
// launch): its blocks are placed, products load weights, and then they wait (wait_for_previous of device.cuh).
#pragma once

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "mlx/array.h"
#include "mlx/backend/cuda/device.h"
#include "mlx/stream.h"

#include "args.h"

namespace mlxrs::cuda {

namespace mx = mlx::core;

// Gives an array memory on the device of a stream, from MLX's own cache of buffers.
void allocate(mx::array& y, mx::Stream s);
void allocate(mx::array& y, size_t bytes, mx::Stream s);
void allocate_as(mx::array& y, mx::Strides strides, mx::array::Flags flags, mx::Stream s);
// Memory of the host that GPUs read and write over the bus, without page faults. For a few bytes.
mx::allocator::Data host_memory(size_t bytes);

// An array of numbers that only kernels see. It lives until they have run.
mx::array scratch(size_t bytes, mx::Stream s);
// Zeros at the same address for all kernels of a stream: counters that kernels set back. At least `count` words.
mx::array counters(size_t count, mx::Stream s);

// The same elements in row-major order: the array itself, or a copy, which lives until the stream's kernels have run.
mx::array dense(const mx::array& a, mx::Stream s);
// The same for a small array that many kernels read: what the host has written is copied to the GPU once, not read over the bus by each
// kernel.
mx::array resident(const mx::array& a, mx::Stream s);

// Whether kernels are launched by themselves, not as nodes of MLX's graphs.
bool launches_directly();

// While one exists, kernels of this thread are captured, and arrays that they use are added to `kept`.
class Capturing {
 public:
  explicit Capturing(std::vector<mx::array>& kept);
  ~Capturing();
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;

  static bool now();
  static void keep(const mx::array& a);
};

// One kernel. Kernels of a stream see what those before them have written.
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
  // The same of `dense` and of `resident` of the array.
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
  // Keeps the array until the kernel has run.
  void keep(const mx::array& a) {
    Capturing::keep(a);
    encoder_.add_temporary(a);
  }
  // Whether the array may not be there yet when the next kernel starts, early.
  bool is_unsettled(const mx::array& a) const;
  // Whether the kernel, whose arrays are all known now, may run beside the kernel before it: that one is of ours, and neither writes what the
  // other uses. The kernel has to end after that one (start_beside_previous).
  bool is_independent();

  // `module` is a name of embedded.h. The kernel takes `args` in this order.
  template <typename... Args>
  void run(const char* module, const std::string& kernel, dim3 blocks, int threads, Args... args) {
    run_with(0, module, kernel, blocks, threads, args...);
  }
  // With so many bytes of shared memory, beside what the kernel declares.
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
  CUfunction find(const char* module, const std::string& kernel, unsigned shared);
  void start(CUfunction kernel, dim3 blocks, unsigned threads, unsigned shared, void** args);

  mx::cu::CommandEncoder& encoder_;
  mx::Stream stream_;
  std::vector<mx::array> inputs_, outputs_;
  bool is_beside_ = false;
};

// Where the heads of an array [B, H, L, D] are, or those of a copy if elements of a head are apart. Where kernels read `unit` elements at once, 16 bytes, each
// head begins at a multiple of them.
Heads heads_of(Launch& launch, const mx::array& a, mx::Stream s, int unit = 1);

// Gives `to`, which has the shape of `from`, memory and the same elements in row-major order.
void copy(const mx::array& from, mx::array& to, mx::Stream s);
// Writes zeros to all of the array's memory.
void fill_with_zeros(mx::array& a, mx::Stream s);

// "bf16", "f16" or "f32".
inline const char* name_of(mx::Dtype dtype) {
  return dtype == mx::bfloat16 ? "bf16" : dtype == mx::float16 ? "f16" : "f32";
}

// Whether the device of a stream runs kernels of ours.
bool runs_kernels(mx::Stream s);
// The same, unless MLX_CUDA_KERNELS=off.
bool is_usable(mx::Stream s);

// Of LinearArgs and LookupArgs. Groups of 16 are counted by kernels of their own.
inline int group_bits_of(int group) {
  return std::countr_zero(static_cast<unsigned>(std::max(group / 32, 1)));
}

// How many blocks take so many tasks.
inline unsigned blocks_of(int64_t tasks, int64_t per_block) {
  return static_cast<unsigned>((tasks + per_block - 1) / per_block);
}

} // namespace mlxrs::cuda
