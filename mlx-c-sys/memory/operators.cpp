// C++'s replaceable allocation functions ([new.delete]), by mimalloc. A program that links this
// file replaces them for all C++ libraries that it loads. MLX makes the objects of a graph node
// (about ten) on one thread and frees them on another one, for which glibc's malloc has to lock an
// arena.
//
// mimalloc is used only in a process whose address space has no limit (RLIMIT_AS): it reserves
// address space a gigabyte at a time, which would leave little for everything else.
#include <sys/resource.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

extern "C" {
void* mi_malloc(std::size_t size);
void* mi_malloc_aligned(std::size_t size, std::size_t alignment);
void mi_free(void* memory);
}

namespace {

enum class Kind : int { unknown, system, mimalloc };

std::atomic<Kind> chosen{Kind::unknown};

// Decided at the first allocation for the whole process, because memory must be freed by the
// allocator that it came from.
Kind kind() noexcept {
  Kind known = chosen.load(std::memory_order_relaxed);
  if (known != Kind::unknown) [[likely]] {
    return known;
  }
  rlimit limit{};
  bool is_limited = getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
  Kind wanted = is_limited ? Kind::system : Kind::mimalloc;
  // Another thread may have been first.
  return chosen.compare_exchange_strong(known, wanted) ? wanted : known;
}

void* allocate(std::size_t size) noexcept {
  return kind() == Kind::mimalloc ? mi_malloc(size) : std::malloc(size);
}

void* allocate(std::size_t size, std::align_val_t alignment) noexcept {
  auto to = static_cast<std::size_t>(alignment);
  if (kind() == Kind::mimalloc) {
    return mi_malloc_aligned(size, to);
  }
  std::size_t rounded = (size + to - 1) / to * to;
  return rounded < size ? nullptr : std::aligned_alloc(to, rounded);
}

void give_back(void* memory) noexcept {
  if (kind() == Kind::mimalloc) {
    mi_free(memory);
  } else {
    std::free(memory);
  }
}

// Tries again as long as a new-handler finds memory.
template <typename... Of>
void* allocate_or_throw(Of... of) {
  for (;;) {
    if (void* memory = allocate(of...)) [[likely]] {
      return memory;
    }
    std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) {
      throw std::bad_alloc();
    }
    handler();
  }
}

template <typename... Of>
void* allocate_or_null(Of... of) noexcept {
  try {
    return allocate_or_throw(of...);
  } catch (...) {
    return nullptr;
  }
}

} // namespace

// Libraries that the program loads look for these in the program first.
#pragma GCC visibility push(default)

void* operator new(std::size_t n) {
  return allocate_or_throw(n);
}
void* operator new[](std::size_t n) {
  return allocate_or_throw(n);
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return allocate_or_null(n);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return allocate_or_null(n);
}
void* operator new(std::size_t n, std::align_val_t to) {
  return allocate_or_throw(n, to);
}
void* operator new[](std::size_t n, std::align_val_t to) {
  return allocate_or_throw(n, to);
}
void* operator new(std::size_t n, std::align_val_t to, const std::nothrow_t&) noexcept {
  return allocate_or_null(n, to);
}
void* operator new[](std::size_t n, std::align_val_t to, const std::nothrow_t&) noexcept {
  return allocate_or_null(n, to);
}

void operator delete(void* p) noexcept {
  give_back(p);
}
void operator delete[](void* p) noexcept {
  give_back(p);
}
void operator delete(void* p, std::size_t) noexcept {
  give_back(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  give_back(p);
}
void operator delete(void* p, const std::nothrow_t&) noexcept {
  give_back(p);
}
void operator delete[](void* p, const std::nothrow_t&) noexcept {
  give_back(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  give_back(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  give_back(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  give_back(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  give_back(p);
}
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  give_back(p);
}
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  give_back(p);
}

#pragma GCC visibility pop

// A program that calls this links the functions above. Returns whether they are mimalloc's in this process.
extern "C" bool mlxrs_operators_are_mimalloc(void) {
  return kind() == Kind::mimalloc;
}
