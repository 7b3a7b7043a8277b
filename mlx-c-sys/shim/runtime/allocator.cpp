// The allocator of MLX's CPU library, replaced. MLX's own returns null when the system has no memory, and its callers
// write to that address. It also allocates when it frees, which ends the process if that allocation fails. Here a
// failed allocation is an error, and freeing cannot fail, because free buffers are linked through their own memory.
//
// As in MLX, a word with the size is stored before the data, free buffers are kept up to a limit, and a free buffer is
// reused for sizes close to its own. If libmlx is not the CPU library, these functions call MLX's.
#ifdef __linux__

#include "mlx/allocator.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "mlx/memory.h"
#include "of_mlx.h"
#include "reserve.h"
#include "worker.h"

namespace {

namespace mx = mlx::core;
using mlxrs::is_cpu_library;
using mlxrs::of_mlx;
using mx::allocator::Allocator;
using mx::allocator::Buffer;

// A buffer. MLX's Buffer points to `size`, and the data begins after it.
struct Block {
  void* memory; // the address that std::malloc returned
  size_t size;
  Block* next; // the data begins here; `next` is used only while the block is free

  static Block* of(Buffer buffer) {
    return reinterpret_cast<Block*>(static_cast<char*>(buffer.ptr()) - offsetof(Block, size));
  }
  Buffer buffer() {
    return Buffer(&size);
  }
};
constexpr size_t header = offsetof(Block, next);
static_assert(offsetof(Block, size) + sizeof(size_t) == header);

// Data begins at a cache line, except in small buffers, which begin where std::malloc puts them. MLX's own buffers
// begin at multiples of 8.
constexpr size_t line = 64, small = 1024, malloc_alignment = 16;

// Sizes up to `exact_from` are rounded up, so that all free buffers of a bin have the same size: to multiples of 16 up
// to `small`, then to eighths of a power of two. Larger sizes are not rounded, because an eighth of them would waste
// too much memory.
constexpr size_t exact_from = 1 << 16;

size_t rounded(size_t size) {
  if (size > exact_from) {
    return size;
  }
  size_t step = size <= small ? 16 : std::bit_floor(size - 1) / 8;
  return std::max<size_t>(16, (size + step - 1) / step * step);
}

// Bins of 16 bytes up to `small`, then eight for each power of two.
constexpr size_t small_bins = small / 16, bins = small_bins + (64 - 10) * 8;

size_t bin_of(size_t size) {
  if (size < small) {
    return size / 16;
  }
  size_t power = std::bit_width(size) - 1;
  return small_bins + (power - 10) * 8 + (size >> (power - 3)) % 8;
}

// Free blocks by size. The block that was freed last comes first, because it may still be in the CPU's caches.
class Bins {
 public:
  void add(Block* block) {
    size_t bin = bin_of(block->size);
    block->next = std::exchange(first_[bin], block);
    used_[bin / 64] |= uint64_t(1) << bin % 64;
    bytes_ += block->size;
  }

  // Removes the smallest block of at least `size` and less than `limit` bytes among the first `tries` of each bin. Null
  // if there is none.
  Block* take(size_t size, size_t limit) {
    for (size_t bin = next(bin_of(size)); bin < bins && bin <= bin_of(limit - 1); bin = next(bin + 1)) {
      Block** best = nullptr;
      Block** place = &first_[bin];
      for (int n = 0; n < tries && *place != nullptr; n++, place = &(*place)->next) {
        size_t found = (*place)->size;
        if (found >= size && found < limit && (best == nullptr || found < (*best)->size)) {
          best = place;
          if (found == size || size < exact_from) {
            break; // all others have this size or a larger one
          }
        }
      }
      if (best != nullptr) {
        return remove(bin, best);
      }
    }
    return nullptr;
  }

  // Removes a block of the bin with the largest sizes. Null if there is none.
  Block* take_large() {
    for (size_t word = std::size(used_); word-- > 0;) {
      if (used_[word] != 0) {
        size_t bin = word * 64 + std::bit_width(used_[word]) - 1;
        return remove(bin, &first_[bin]);
      }
    }
    return nullptr;
  }

  size_t bytes() const {
    return bytes_;
  }

 private:
  // The blocks of a bin that are looked at. Only bins for sizes from `exact_from` on have blocks that do not fit.
  static constexpr int tries = 64;

  // The first bin from `bin` on that has blocks, or `bins`.
  size_t next(size_t bin) const {
    if (bin >= bins) {
      return bins;
    }
    size_t word = bin / 64;
    uint64_t bits = used_[word] & (~uint64_t(0) << bin % 64);
    while (bits == 0) {
      if (++word == std::size(used_)) {
        return bins;
      }
      bits = used_[word];
    }
    return word * 64 + std::countr_zero(bits);
  }

  Block* remove(size_t bin, Block** place) {
    Block* block = *place;
    *place = block->next;
    if (first_[bin] == nullptr) {
      used_[bin / 64] &= ~(uint64_t(1) << bin % 64);
    }
    bytes_ -= block->size;
    return block;
  }

  Block* first_[bins] = {};
  // One bit for each bin, set if the bin has blocks.
  uint64_t used_[(bins + 63) / 64] = {};
  size_t bytes_ = 0;
};

class CpuAllocator : public Allocator {
 public:
  CpuAllocator() {
    mlxrs::keep_reserve();
  }

  Buffer malloc(size_t requested) override {
    size_t size = rounded(requested);
    if (mlxrs::is_memory_short() && (release(0), mlxrs::is_memory_short())) {
      fail(requested);
    }
    if (Block* block = reuse(size)) {
      return block->buffer();
    }
    Block* block = make(size);
    if (block == nullptr && release(0)) {
      block = make(size);
    }
    if (block == nullptr) {
      fail(requested);
    }
    {
      std::lock_guard lock(mutex_);
      use(size);
      unchecked_ += size;
      if (unchecked_ < check_every) {
        return block->buffer();
      }
      unchecked_ = 0;
    }
    if (!mlxrs::has_headroom() && !(release(0) && mlxrs::has_headroom())) {
      free(block->buffer());
      release(0);
      fail(requested);
    }
    return block->buffer();
  }

  void free(Buffer buffer) override {
    if (buffer.ptr() == nullptr) {
      return;
    }
    Block* block = Block::of(buffer);
    {
      std::lock_guard lock(mutex_);
      active_ -= block->size;
      if (block->size <= limit_ && free_.bytes() <= limit_ - block->size) {
        return free_.add(block);
      }
    }
    std::free(block->memory);
  }

  size_t size(Buffer buffer) const override {
    return buffer.ptr() == nullptr ? 0 : *static_cast<const size_t*>(buffer.ptr());
  }

  // Returns free buffers to the system, the largest first, until at most `most` bytes are kept. Returns whether there
  // were any.
  bool release(size_t most) {
    std::lock_guard lock(mutex_);
    bool any = false;
    while (free_.bytes() > most) {
      std::free(free_.take_large()->memory);
      any = true;
    }
    return any;
  }

  size_t set_limit(size_t limit) {
    size_t before;
    {
      std::lock_guard lock(mutex_);
      before = std::exchange(limit_, limit);
    }
    release(limit);
    return before;
  }

  size_t kept() {
    std::lock_guard lock(mutex_);
    return free_.bytes();
  }
  // MLX calls this for each node that it evaluates.
  size_t active() const {
    return active_.load(std::memory_order_relaxed);
  }
  size_t peak() {
    std::lock_guard lock(mutex_);
    return peak_;
  }
  void reset_peak() {
    std::lock_guard lock(mutex_);
    peak_ = active_;
  }

 private:
  [[noreturn]] static void fail(size_t size) {
    throw std::runtime_error("no memory for " + std::to_string(size) + " bytes");
  }

  // A buffer from the system, or null.
  static Block* make(size_t size) {
    size_t more = header + (size < small ? 0 : line - malloc_alignment), bytes = size + more;
    void* memory = bytes < size ? nullptr : std::malloc(bytes);
    if (memory == nullptr) {
      return nullptr;
    }
    auto data = reinterpret_cast<uintptr_t>(memory) + header;
    if (size >= small) {
      data = (data + line - 1) / line * line;
    }
    auto* block = reinterpret_cast<Block*>(data - header);
    block->memory = memory;
    block->size = size;
    return block;
  }

  // A free buffer of less than twice the size and at most two pages more, as in MLX.
  Block* reuse(size_t size) {
    constexpr size_t pages = 2 * 4096;
    size_t more = std::min(size, pages);
    if (size + more < size) {
      return nullptr;
    }
    std::lock_guard lock(mutex_);
    Block* block = free_.take(size, size + more);
    if (block != nullptr) {
      use(block->size);
    }
    return block;
  }

  void use(size_t size) {
    active_ += size;
    peak_ = std::max(peak_, active_.load());
  }

  std::mutex mutex_;
  Bins free_;
  size_t limit_ = 32 << 20, peak_ = 0;
  // The bytes that are taken from the system before the next check that memory is left. Larger buffers are always
  // checked.
  static constexpr size_t check_every = 1 << 17;
  size_t unchecked_ = 0;
  // Written only under the mutex.
  std::atomic<size_t> active_ = 0;
};

// Never destroyed, because streams and other threads may free buffers while the program exits.
CpuAllocator& cpu() {
  static auto* allocator = new CpuAllocator;
  return *allocator;
}

} // namespace

namespace mlx::core {

namespace allocator {

Allocator& allocator() {
  static Allocator& chosen =
      is_cpu_library() ? cpu() : of_mlx<Allocator&()>("_ZN3mlx4core9allocator9allocatorEv")();
  return chosen;
}

} // namespace allocator

size_t get_active_memory() {
  if (!is_cpu_library()) {
    static auto* mlx = of_mlx<size_t()>("_ZN3mlx4core17get_active_memoryEv");
    return mlx();
  }
  return cpu().active();
}

size_t get_peak_memory() {
  if (!is_cpu_library()) {
    static auto* mlx = of_mlx<size_t()>("_ZN3mlx4core15get_peak_memoryEv");
    return mlx();
  }
  return cpu().peak();
}

void reset_peak_memory() {
  if (!is_cpu_library()) {
    static auto* mlx = of_mlx<void()>("_ZN3mlx4core17reset_peak_memoryEv");
    return mlx();
  }
  cpu().reset_peak();
}

size_t get_cache_memory() {
  if (!is_cpu_library()) {
    static auto* mlx = of_mlx<size_t()>("_ZN3mlx4core16get_cache_memoryEv");
    return mlx();
  }
  return cpu().kept();
}

size_t set_cache_limit(size_t limit) {
  if (!is_cpu_library()) {
    static auto* mlx = of_mlx<size_t(size_t)>("_ZN3mlx4core15set_cache_limitEm");
    return mlx(limit);
  }
  mlxrs::finish_own_workers();
  return cpu().set_limit(limit);
}

void clear_cache() {
  if (!is_cpu_library()) {
    static auto* mlx = of_mlx<void()>("_ZN3mlx4core11clear_cacheEv");
    return mlx();
  }
  if (cpu().kept() > 0) {
    mlxrs::finish_own_workers();
    cpu().release(0);
  }
}

} // namespace mlx::core

#endif
