// A step of a model reads all of its weights, so what was free memory in the step before is in no cache when the next graph is built.
// Allocators that link free objects through these wait for each of them before they know the next. Here tables of addresses and bits tell
// who is free: an object is not touched before it is written, those to come are fetched meanwhile, and they lie in the order in which they
// are taken.
#include "pool.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <mutex>

namespace mlxrs::pool {
namespace {

// In front of each object, written once.
struct alignas(alignof(std::max_align_t)) Header {
  bool is_pooled;
  union {
    // Which of the pool's sizes it has.
    uint64_t size;
    // Where malloc's memory begins.
    void* begin;
  };
};

// Size i is (i + 1) steps.
constexpr std::size_t step = alignof(std::max_align_t), sizes = 64, largest = sizes * step;

// Free objects of a size that a thread keeps at most, and how many it gives away or takes at a time.
constexpr uint32_t most = 256, some = most / 2;

// An object is fetched when so many others will be taken before.
constexpr uint32_t ahead = 4;

Header& header_of(void* object) {
  return static_cast<Header*>(object)[-1];
}

// Objects of one size, one behind the other. It begins at a multiple of `chunk_bytes`.
constexpr std::size_t chunk_bytes = 1 << 16;
struct alignas(Header) Chunk {
  std::size_t number;
  // Which objects nobody has. `at` finds them behind it.
  uint64_t free[chunk_bytes / (sizeof(Header) + step) / 64];

  static Chunk& of(void* object) {
    return *reinterpret_cast<Chunk*>(reinterpret_cast<uintptr_t>(object) / chunk_bytes * chunk_bytes);
  }
  static uint32_t bytes(uint64_t size) {
    return sizeof(Header) + (size + 1) * step;
  }
  static uint32_t count(uint64_t size) {
    return (chunk_bytes - sizeof(Chunk)) / bytes(size);
  }
  void* at(uint32_t index, uint64_t size) {
    return reinterpret_cast<char*>(this + 1) + index * bytes(size) + sizeof(Header);
  }
  uint32_t index(void* object, uint64_t size) {
    auto distance = static_cast<char*>(object) - reinterpret_cast<char*>(this + 1);
    return static_cast<uint32_t>(distance) / bytes(size);
  }
};

// Objects of one size that no thread keeps. Never destroyed, because other static objects use it to their end.
class Shared {
 public:
  // Takes up to `some`, which it makes if there are none, the first in memory at the end. How many: none without memory.
  uint32_t take(uint64_t size, void** to) noexcept {
    std::lock_guard lock(mutex_);
    uint32_t n = 0;
    do {
      for (; first_ < count_ && n < some; first_ += n < some) {
        for (auto& bits : chunks_[first_]->free) {
          auto base = static_cast<uint32_t>(64 * (&bits - chunks_[first_]->free));
          for (; bits != 0 && n < some; bits &= bits - 1) {
            to[n++] = chunks_[first_]->at(base + std::countr_zero(bits), size);
          }
        }
      }
    } while (n == 0 && make(size));
    std::reverse(to, to + n);
    return n;
  }

  void give(uint64_t size, void* const* from, uint32_t n) noexcept {
    std::lock_guard lock(mutex_);
    for (uint32_t i = 0; i < n; i++) {
      Chunk& chunk = Chunk::of(from[i]);
      uint32_t index = chunk.index(from[i], size);
      chunk.free[index / 64] |= uint64_t(1) << index % 64;
      first_ = std::min(first_, chunk.number);
    }
  }

  bool has(const void* memory) noexcept {
    std::lock_guard lock(mutex_);
    auto distance = [&](const Chunk* chunk) { return reinterpret_cast<uintptr_t>(memory) - reinterpret_cast<uintptr_t>(chunk); };
    return std::any_of(chunks_, chunks_ + count_, [&](const Chunk* chunk) { return distance(chunk) < chunk_bytes; });
  }

 private:
  bool make(uint64_t size) {
    if (count_ == room_) {
      std::size_t room = 2 * room_ + 16;
      auto* grown = static_cast<Chunk**>(std::realloc(chunks_, room * sizeof(Chunk*)));
      if (grown == nullptr) {
        return false;
      }
      chunks_ = grown;
      room_ = room;
    }
    auto* chunk = static_cast<Chunk*>(std::aligned_alloc(chunk_bytes, chunk_bytes));
    if (chunk == nullptr) {
      return false;
    }
    chunk->number = count_;
    std::fill(std::begin(chunk->free), std::end(chunk->free), 0);
    for (uint32_t i = 0; i < Chunk::count(size); i++) {
      chunk->free[i / 64] |= uint64_t(1) << i % 64;
      header_of(chunk->at(i, size)) = {true, {size}};
    }
    chunks_[count_++] = chunk;
    return true;
  }

  std::mutex mutex_;
  Chunk** chunks_ = nullptr;
  // Those before the first have no free objects.
  std::size_t count_ = 0, room_ = 0, first_ = 0;
};
constinit Shared shared[sizes];

// Free objects of one size that a thread keeps.
struct Stack {
  uint32_t count;
  void* free[most];
};

// A thread's stacks, one for each size: null before the first use, and again when the thread has ended.
thread_local constinit Stack* own = nullptr;
thread_local constinit bool has_ended = false;

struct End {
  ~End() {
    for (uint64_t size = 0; size < sizes; size++) {
      shared[size].give(size, own[size].free, own[size].count);
    }
    std::free(own);
    own = nullptr;
    has_ended = true;
  }
};

// Whether this thread has stacks, which it gets now if it can.
bool has_stacks() {
  if (own != nullptr || has_ended) {
    return own != nullptr;
  }
  own = static_cast<Stack*>(std::calloc(sizes, sizeof(Stack)));
  if (own != nullptr) {
    static thread_local End end;
  }
  return own != nullptr;
}

void* take_shared(uint64_t size) {
  if (has_stacks()) {
    Stack& stack = own[size];
    stack.count = shared[size].take(size, stack.free);
    return stack.count == 0 ? nullptr : stack.free[--stack.count];
  }
  void* objects[some];
  uint32_t n = shared[size].take(size, objects);
  if (n == 0) {
    return nullptr;
  }
  shared[size].give(size, objects, n - 1);
  return objects[n - 1];
}

void give_shared(void* object, uint64_t size) {
  if (!has_stacks()) {
    shared[size].give(size, &object, 1);
    return;
  }
  Stack& stack = own[size];
  if (stack.count == most) {
    // Those that have been free for longest.
    shared[size].give(size, stack.free, some);
    std::copy(stack.free + some, std::end(stack.free), stack.free);
    stack.count -= some;
  }
  stack.free[stack.count++] = object;
}

} // namespace

void* take(std::size_t bytes) noexcept {
  if (bytes > largest) {
    return take(bytes, alignof(std::max_align_t));
  }
  uint64_t size = bytes == 0 ? 0 : (bytes - 1) / step;
  if (own == nullptr || own[size].count == 0) {
    return take_shared(size);
  }
  Stack& stack = own[size];
  void* object = stack.free[--stack.count];
  if (stack.count >= ahead) {
    auto* next = static_cast<char*>(stack.free[stack.count - ahead]);
    for (std::size_t i = 0; i < bytes; i += 64) {
      __builtin_prefetch(next + i, 1);
    }
  }
  return object;
}

void* take(std::size_t bytes, std::size_t alignment) noexcept {
  alignment = std::max(alignment, alignof(std::max_align_t));
  std::size_t all = bytes + alignment + sizeof(Header);
  auto* begin = all < bytes ? nullptr : static_cast<char*>(std::malloc(all));
  if (begin == nullptr) {
    return nullptr;
  }
  char* object = begin + sizeof(Header);
  object += -reinterpret_cast<uintptr_t>(object) % alignment;
  auto& header = header_of(object);
  header.is_pooled = false;
  header.begin = begin;
  return object;
}

void give(void* object) noexcept {
  if (object == nullptr) {
    return;
  }
  const auto& header = header_of(object);
  if (!header.is_pooled) {
    std::free(header.begin);
    return;
  }
  if (own == nullptr || own[header.size].count == most) {
    give_shared(object, header.size);
    return;
  }
  Stack& stack = own[header.size];
  stack.free[stack.count++] = object;
}

bool has(const void* memory) noexcept {
  for (auto& objects : shared) {
    if (objects.has(memory)) {
      return true;
    }
  }
  return false;
}

} // namespace mlxrs::pool
