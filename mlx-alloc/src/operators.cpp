// C++'s replaceable allocation functions ([new.delete]), by the pool.
#include <cstddef>
#include <new>

#include "pool.h"

namespace pool = mlxrs::pool;

namespace {

// What `allocate` gives, after as many calls of the new-handler as it takes.
template <typename Allocate>
void* try_until(const Allocate& allocate) {
  for (;;) {
    if (void* p = allocate()) {
      return p;
    }
    std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) {
      throw std::bad_alloc();
    }
    handler();
  }
}

template <typename Allocate>
void* try_or_null(const Allocate& allocate) noexcept {
  try {
    return try_until(allocate);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

auto plain(std::size_t n) {
  return [n] { return pool::take(n); };
}

auto aligned(std::size_t n, std::align_val_t to) {
  return [=] { return pool::take(n, static_cast<std::size_t>(to)); };
}

} // namespace

// Libraries that the program loads look for them here first.
#pragma GCC visibility push(default)

void* operator new(std::size_t n) {
  return try_until(plain(n));
}
void* operator new[](std::size_t n) {
  return try_until(plain(n));
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return try_or_null(plain(n));
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return try_or_null(plain(n));
}
void* operator new(std::size_t n, std::align_val_t to) {
  return try_until(aligned(n, to));
}
void* operator new[](std::size_t n, std::align_val_t to) {
  return try_until(aligned(n, to));
}
void* operator new(std::size_t n, std::align_val_t to, const std::nothrow_t&) noexcept {
  return try_or_null(aligned(n, to));
}
void* operator new[](std::size_t n, std::align_val_t to, const std::nothrow_t&) noexcept {
  return try_or_null(aligned(n, to));
}

void operator delete(void* p) noexcept {
  pool::give(p);
}
void operator delete[](void* p) noexcept {
  pool::give(p);
}
void operator delete(void* p, std::size_t) noexcept {
  pool::give(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  pool::give(p);
}
void operator delete(void* p, const std::nothrow_t&) noexcept {
  pool::give(p);
}
void operator delete[](void* p, const std::nothrow_t&) noexcept {
  pool::give(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  pool::give(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  pool::give(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  pool::give(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  pool::give(p);
}
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  pool::give(p);
}
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  pool::give(p);
}

#pragma GCC visibility pop

extern "C" bool mlx_alloc_has(const void* memory) {
  return pool::has(memory);
}
