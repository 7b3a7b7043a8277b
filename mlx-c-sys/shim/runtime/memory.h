// Scratch memory of a thread, kept for its next use.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

namespace mlxrs {

// Memory that grows as needed, aligned to a cache line.
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

// `for_all`: memory that the caller of a loop prepares for all tasks. `for_task`: memory of one task. The caller runs
// tasks too, so it uses both. `for_join`: the products of two matrices before they are joined. `for_row`: a row of x as
// 16-bit integers before it is split into bytes. `for_node`: memory of an operation's kernel.
inline thread_local Memory for_all, for_task, for_join, for_row, for_node;

// Called when a thread starts. The C library registers a destructor at the first use of a thread-local object, and ends
// the process if it has no memory for that.
inline void prepare_thread() noexcept {
  try {
    for (Memory* memory : {&for_all, &for_task, &for_join, &for_row, &for_node}) {
      memory->of<char>(1);
    }
  } catch (const std::exception&) {
    // The destructors are registered now. The memory is requested again when it is needed.
  }
}

} // namespace mlxrs
