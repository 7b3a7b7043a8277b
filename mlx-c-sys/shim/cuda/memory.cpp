// Device memory for the results of our kernels. libmlx does not export CudaAllocator::malloc_async, but its header
// declares the class. This file defines the function again with the same size classes, cache and statistics.
#include "mlx/backend/cuda/allocator.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "driver.h"
#include "launch.h"

namespace mlxrs::cuda {
namespace {

// Sets the release threshold of the driver's memory pool to the maximum. By default the driver returns freed memory to
// the system at each synchronisation and maps it again at the next allocation.
void keep_freed_memory(int device) {
  static std::mutex guard;
  static std::set<int> done;
  std::lock_guard lock(guard);
  if (!done.insert(device).second) {
    return;
  }
  CUmemoryPool pool = nullptr;
  check(Driver::get().get_pool(&pool, device), "no pool of memory");
  uint64_t all = UINT64_MAX;
  check(Driver::get().set_pool_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all), "a pool of memory");
}

} // namespace

size_t kept_memory(int device) {
  CUmemoryPool pool = nullptr;
  check(Driver::get().get_pool(&pool, device), "no pool of memory");
  uint64_t reserved = 0, used = 0;
  check(Driver::get().get_pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved), "a pool of memory");
  check(Driver::get().get_pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), "a pool of memory");
  return reserved > used ? reserved - used : 0;
}

namespace {

// The text is one that Rust takes for a lack of memory (ffi.rs).
struct NoMemory : std::runtime_error {
  NoMemory(size_t bytes, size_t active, size_t total)
      : std::runtime_error(
            "no memory for " + std::to_string(bytes) + " bytes on the GPU: arrays take " + std::to_string(active) + " of " +
            std::to_string(total)) {}
};

// A stream for allocations that are made while another stream is captured.
CUstream allocating_stream() {
  thread_local CUstream stream = [] {
    CUstream made = nullptr;
    check(Driver::get().create_stream(&made, CU_STREAM_NON_BLOCKING), "no stream");
    return made;
  }();
  return stream;
}

} // namespace
} // namespace mlxrs::cuda

namespace mlx::core::cu {

// Sizes are rounded as in MLX: to powers of two below a page of 16 KiB, to whole pages above.
Buffer CudaAllocator::malloc_async(size_t size, int device, cudaStream_t stream) {
  constexpr size_t small = 8, page = 16384;
  if (size <= small) {
    // MLX's pool of small buffers is private to its own function.
    return static_cast<allocator::Allocator*>(this)->malloc(size);
  }
  if (size < page) {
    size_t power = small;
    while (power < size) {
      power *= 2;
    }
    size = power;
  } else {
    size = page * ((size + page - 1) / page);
  }
  std::unique_lock lock(mutex_);
  CudaBuffer* buffer = buffer_cache_.reuse_from_cache(size);
  if (buffer == nullptr) {
    auto over = static_cast<int64_t>(active_memory_ + buffer_cache_.cache_size() + size) - static_cast<int64_t>(memory_limit_);
    if (over > 0) {
      buffer_cache_.release_cached_buffers(static_cast<size_t>(over));
    }
    // A part of the memory stays free for MLX's own kernels, whose allocations fail for good: after one of them each
    // later evaluation of the thread fails, too.
    if (active_memory_ + size > total_memory_ - free_limit_) {
      throw mlxrs::cuda::NoMemory(size, active_memory_, total_memory_);
    }
    const auto& driver = mlxrs::cuda::Driver::get();
    mlxrs::cuda::keep_freed_memory(device);
    CUdeviceptr at = 0;
    auto allocate = [&] {
      if (!mlxrs::cuda::Capturing::now()) {
        return driver.allocate(&at, size, reinterpret_cast<CUstream>(stream));
      }
      // On the capturing stream the allocation would become a node of the graph.
      CUstream other = mlxrs::cuda::allocating_stream();
      CUresult result = driver.allocate(&at, size, other);
      return result == CUDA_SUCCESS ? driver.wait_for_stream(other) : result;
    };
    CUresult result = allocate();
    if (result != CUDA_SUCCESS) {
      buffer_cache_.clear();
      result = allocate();
    }
    if (result != CUDA_SUCCESS) {
      throw mlxrs::cuda::NoMemory(size, active_memory_, total_memory_);
    }
    buffer = new CudaBuffer{reinterpret_cast<void*>(at), size, device};
  }
  active_memory_ += buffer->size;
  peak_memory_ = std::max(active_memory_, peak_memory_);
  if (buffer_cache_.cache_size() > max_pool_size_) {
    buffer_cache_.release_cached_buffers(buffer_cache_.cache_size() - max_pool_size_);
  }
  return Buffer{buffer};
}

allocator::Data malloc_async(size_t size, CommandEncoder& encoder) {
  auto& all = static_cast<CudaAllocator&>(allocator::allocator());
  auto allocate = [&] { return allocator::Data(all.malloc_async(size, encoder.device().cuda_device(), encoder.stream())); };
  try {
    return allocate();
  } catch (const mlxrs::cuda::NoMemory&) {
    if (mlxrs::cuda::Capturing::now()) {
      throw;
    }
    // The arrays of queued kernels take memory until these have run.
    encoder.synchronize();
    return allocate();
  }
}

} // namespace mlx::core::cu

namespace mlxrs::cuda {

void allocate(mx::array& y, size_t bytes, mx::Stream s) {
  y.set_data(mx::cu::malloc_async(bytes, mx::cu::get_command_encoder(s)));
}

void allocate_as(mx::array& y, mx::Strides strides, mx::array::Flags flags, mx::Stream s) {
  y.set_data(mx::cu::malloc_async(y.nbytes(), mx::cu::get_command_encoder(s)), y.size(), std::move(strides), flags);
}

void allocate(mx::array& y, mx::Stream s) {
  allocate(y, y.nbytes(), s);
}

namespace {

// Pinned host memory in blocks of one size, cut from slabs that are never freed.
class HostPool {
 public:
  static HostPool& of(size_t size) {
    static std::mutex guard;
    static auto* pools = new std::unordered_map<size_t, HostPool*>;
    std::lock_guard lock(guard);
    auto& pool = (*pools)[size];
    if (pool == nullptr) {
      pool = new HostPool(size);
    }
    return *pool;
  }
  mx::cu::CudaBuffer* take() {
    std::lock_guard lock(guard_);
    if (free_.empty()) {
      grow();
    }
    auto* buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  void give(mx::cu::CudaBuffer* buffer) {
    std::lock_guard lock(guard_);
    free_.push_back(buffer);
  }

 private:
  explicit HostPool(size_t size) : size_(size) {}

  void grow() {
    size_t slab = std::max<size_t>(size_, 64 << 10);
    void* at = nullptr;
    mx::cu::device(0).make_current();
    check(Driver::get().allocate_host(&at, slab, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP), "no pinned memory");
    for (size_t i = 0; i + size_ <= slab; i += size_) {
      // MLX marks memory that the host can read with device -1.
      free_.push_back(new mx::cu::CudaBuffer{static_cast<char*>(at) + i, size_, -1});
    }
  }

  std::mutex guard_;
  size_t size_;
  std::vector<mx::cu::CudaBuffer*> free_;
};

} // namespace

mx::allocator::Data host_memory(size_t bytes) {
  size_t size = 64;
  while (size < bytes) {
    size *= 2;
  }
  auto& pool = HostPool::of(size);
  auto give = [&pool](mx::allocator::Buffer buffer) {
    pool.give(static_cast<mx::cu::CudaBuffer*>(const_cast<void*>(static_cast<const void*>(buffer.ptr()))));
  };
  return mx::allocator::Data(mx::allocator::Buffer(pool.take()), give);
}

mx::allocator::Data copy_to_device(const void* from, size_t bytes) {
  auto& encoder = mx::cu::get_command_encoder(mx::default_stream(mx::Device::gpu));
  encoder.device().make_current();
  auto to = mx::cu::malloc_async(bytes, encoder);
  auto* buffer = static_cast<const mx::cu::CudaBuffer*>(to.buffer().ptr());
  if (buffer->device < 0) {
    // The cache had a buffer of managed memory, which the host can write.
    std::memcpy(buffer->data, from, bytes);
    return to;
  }
  const auto& driver = Driver::get();
  auto stream = static_cast<CUstream>(encoder.stream());
  check(driver.copy_to_device(reinterpret_cast<CUdeviceptr>(buffer->data), from, bytes, stream), "a copy to the GPU");
  // A CPU stream may read the array next, and does not wait for this one.
  check(driver.wait_for_stream(stream), "a copy to the GPU");
  return to;
}

mx::array scratch(size_t bytes, mx::Stream s) {
  mx::array a(mx::Shape{static_cast<int>((bytes + 3) / 4)}, mx::uint32, nullptr, {});
  allocate(a, s);
  return a;
}

mx::array counters(size_t count, mx::Stream s) {
  // The table is thread-local because MLX's streams belong to threads.
  thread_local std::unordered_map<int, mx::array> all;
  auto found = all.find(s.index);
  if (found != all.end() && found->second.size() >= count) {
    return found->second;
  }
  auto a = scratch(4 * std::max<size_t>(count, 4096), s);
  fill_with_zeros(a, s);
  if (Capturing::now()) {
    // Within a capture the zeros are written only when the graph runs, so this array is not kept.
    return a;
  }
  if (found != all.end()) {
    Launch(s).keep(found->second);
  }
  mx::cu::get_command_encoder(s).commit();
  all.insert_or_assign(s.index, a);
  return a;
}

} // namespace mlxrs::cuda
