// Scratch memory of a thread, kept for its next product.
#pragma once

#include <cstddef>
#include <exception>
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
// too, so it uses both. `for_join` has products of two matrices before they are joined, `for_row` a row of x as whole
// numbers, before it is bytes, and `for_node` what an operation's kernel needs.
inline thread_local Memory for_all, for_task, for_join, for_row, for_node;

// Called at the start of a thread. The C library registers a destructor at the first use of each, and ends the process
// where it has no memory for that.
inline void prepare_thread() noexcept {
  try {
    for (Memory* memory : {&for_all, &for_task, &for_join, &for_row, &for_node}) {
      memory->of<char>(1);
    }
  } catch (const std::exception&) {
    // Registered: memory will be asked for again.
  }
}

} // namespace mlxrs
