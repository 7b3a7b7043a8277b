// Scratch memory of a thread, kept for its next product.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

namespace mlxrs {

// Aligned to a cache line, for any kernel.
class Memory {
 public:
  template <typename T>
  T* of(long n) {
    size_t bytes = n * sizeof(T);
    if (bytes > size_) {
      size_ = 0;
      memory_.reset();
      memory_.reset(static_cast<char*>(::operator new[](bytes, std::align_val_t(64), std::nothrow)));
      if (memory_ == nullptr) {
        throw std::runtime_error("no memory for " + std::to_string(bytes) + " bytes");
      }
      size_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(char* p) const {
      ::operator delete[](p, std::align_val_t(64));
    }
  };
  std::unique_ptr<char[], Free> memory_;
  size_t size_ = 0;
};

// `for_all` is what the caller of a loop prepares for all its tasks, `for_task` what one task needs. The caller runs tasks
// too, so it uses both.
inline thread_local Memory for_all, for_task;

// Called at the start of a thread. The system registers the destructors at the first use, and ends the process where it
// has no memory for that.
inline void prepare_thread() noexcept {
  try {
    for_all.of<char>(1);
    for_task.of<char>(1);
  } catch (const std::exception&) {
    // Registered: memory will be asked for again.
  }
}

} // namespace mlxrs
