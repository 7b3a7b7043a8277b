// Writing the keys and values of a flat step into pools of pages.
#pragma once

#include "ops/pages.h"
#include "store.h"

namespace mlxrs::ops {

struct PagedStoreInputs {
  // The pool of keys, and of values; only one for latents. [N, K, PAGE, D] each.
  Arrays pools;
  // Either the new keys [1, K, T, D], or the projection that the node computes them from.
  std::optional<mx::array> keys;
  std::optional<Projection> projection;
  std::optional<mx::array> values; // [1, K, T, Dv]; none for latents
  FlatRows rows;
  // The projection of queries, whose heads are another output. Only with a projection of keys.
  std::optional<Projection> queries = std::nullopt;

  mx::Shape keys_shape() const {
    return keys ? keys->shape() : projection->shape();
  }
};
struct PagedStoreOptions {
  RowPacking packing;
  bool in_place; // as in StoreOptions

  bool operator==(const PagedStoreOptions&) const = default;
};
// Throws if shapes or dtypes do not fit each other.
void check_paged_store(const PagedStoreInputs& of, const RowPacking& packing);
// The pools with the new tokens, and the heads of queries if there are any. Returns nothing for inputs that the GPU
// kernels do not support.
std::optional<Arrays> paged_store(const PagedStoreInputs& of, const PagedStoreOptions& options, mx::Stream s);
Arrays paged_store_plainly(const PagedStoreInputs& of, const PagedStoreOptions& options, mx::Stream s);

} // namespace mlxrs::ops
