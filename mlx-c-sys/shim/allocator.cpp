// MLX's allocator, of which a failure is an error. The allocator of MLX's CPU library gives null where the system has no
// memory, and what asked for it writes there.
//
// The counts of that allocator include what it could not give, so that they are corrected here: a thread that evaluates
// waits while more is in use than the limit says.
#ifdef __linux__

#include "mlx/allocator.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "mlx/memory.h"
#include "of_mlx.h"

namespace {

namespace mx = mlx::core;
using mlxrs::of_mlx;
using mx::allocator::Allocator;
using mx::allocator::Buffer;

// Bytes that MLX counts as in use and could not give.
std::atomic<size_t> missing{0};
// The highest use before the last failure, at which MLX's own count of it starts anew.
std::atomic<size_t> peak_before{0};

size_t mlx_peak() {
  static auto* mlx = of_mlx<size_t()>("_ZN3mlx4core15get_peak_memoryEv");
  return mlx();
}
void mlx_reset_peak() {
  static auto* mlx = of_mlx<void()>("_ZN3mlx4core17reset_peak_memoryEv");
  mlx();
}

class Checked : public Allocator {
 public:
  explicit Checked(Allocator& mlx) : mlx_(mlx) {}

  Buffer malloc(size_t size) override {
    size_t peak = mx::get_peak_memory();
    Buffer buffer = mlx_.malloc(size);
    if (buffer.ptr() == nullptr && size > 0) {
      missing += size;
      peak_before = std::max(peak, peak_before.load());
      mlx_reset_peak();
      throw std::runtime_error("no memory for " + std::to_string(size) + " bytes");
    }
    return buffer;
  }
  void free(Buffer buffer) override {
    mlx_.free(buffer);
  }
  size_t size(Buffer buffer) const override {
    return mlx_.size(buffer);
  }
  Buffer make_buffer(void* data, size_t size) override {
    return mlx_.make_buffer(data, size);
  }
  void release(Buffer buffer) override {
    mlx_.release(buffer);
  }

 private:
  Allocator& mlx_;
};

} // namespace

namespace mlx::core {

namespace allocator {

Allocator& allocator() {
  static auto* checked = new Checked(of_mlx<Allocator&()>("_ZN3mlx4core9allocator9allocatorEv")());
  return *checked;
}

} // namespace allocator

size_t get_active_memory() {
  static auto* mlx = of_mlx<size_t()>("_ZN3mlx4core17get_active_memoryEv");
  return mlx() - missing;
}

size_t get_peak_memory() {
  size_t peak = mlx_peak();
  return std::max(peak - std::min(peak, missing.load()), peak_before.load());
}

void reset_peak_memory() {
  peak_before = 0;
  mlx_reset_peak();
}

} // namespace mlx::core

#endif
