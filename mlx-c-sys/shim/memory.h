// Memory that a thread keeps for its next product.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace mlxrs {

// Aligned for any kernel.
class Memory {
 public:
  template <typename T>
  T* of(long n) {
    size_t bytes = n * sizeof(T);
    if (bytes > size_) {
      size_ = 0;
      memory_.reset();
      memory_.reset(static_cast<char*>(::operator new[](bytes, std::align_val_t(64))));
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

// For what a call's caller prepares for all, and for what each task needs: the caller works on tasks too.
inline thread_local Memory for_all, for_task;

} // namespace mlxrs
