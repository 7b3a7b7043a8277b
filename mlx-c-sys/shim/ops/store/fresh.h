// New keys and values on their way into a cache.
#pragma once

#include "ops/rope/heads.h"
#include "store.h"

namespace mlxrs::ops {

// Prefetches cache lines for writing.
inline void fetch(const char* at, size_t n) {
  for (size_t i = 0; i < n; i += 64) {
    __builtin_prefetch(at + i, 1);
  }
}

// Converts new keys or values [B, K, L, D] to the cache's storage format, which is packed if the cache is quantised.
class Fresh {
 public:
  Fresh(const mx::array& fresh, const RowPacking& packing)
      : from_(fresh), n_(fresh.shape(3)), heads_(fresh.shape(1)), packing_(packing),
        pack_(packing.bits > 0 ? row_kernels(fresh.dtype()).pack : nullptr) {}

  // Writes head h of one token to the address to(h).
  template <typename To>
  void operator()(long row, long token, long tokens, const To& to) const {
    for (uint32_t head = 0; head < heads_; head++) {
      auto i = static_cast<uint32_t>((row * heads_ + head) * tokens + token);
      char* y = to(head);
      if (pack_ != nullptr) {
        pack_(from_(i, workspace(n_)), packing_, n_, reinterpret_cast<uint32_t*>(y));
      } else {
        from_.copy(i, y);
      }
    }
  }

 private:
  Vectors from_;
  long n_;
  uint32_t heads_;
  RowPacking packing_;
  decltype(RowKernels::pack) pack_;
};

} // namespace mlxrs::ops
