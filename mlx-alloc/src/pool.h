// Memory for small objects of which one thread makes many that another destroys.
#pragma once

#include <cstddef>

namespace mlxrs::pool {

// Null if there is no memory. Aligned for every type that asks for no more than usual.
void* take(std::size_t bytes) noexcept;
// The same at multiples of `alignment`, a power of two.
void* take(std::size_t bytes, std::size_t alignment) noexcept;
// What either gave, or null; by any thread.
void give(void* object) noexcept;

// Whether it lies in the pool's memory, which is never given back. Slow: for tests.
bool has(const void* memory) noexcept;

} // namespace mlxrs::pool
