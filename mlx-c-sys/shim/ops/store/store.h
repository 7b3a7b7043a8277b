// New keys and values on their way into a KV cache: packed, and written into their slots.
#pragma once

#include <array>

#include "ops/rope/rope.h"

namespace mlxrs::ops {

// Packed vectors of 4 or 8 bits and a group that MLX has, or, with zeros, none.
RowPacking row_packing(int bits, int group);
// Vectors along the last axis as RowPacking says: [.., D] of floating point -> [.., words] U32, and back.
mx::array pack(const mx::array& x, const RowPacking& packing, mx::Stream s);
mx::array pack_plainly(const mx::array& x, const RowPacking& packing, mx::Stream s);
// `dtype`: of the elements before they were packed, and of their scales. F32.
mx::array unpack_plainly(const mx::array& words, const RowPacking& packing, mx::Dtype dtype, mx::Stream s);
// Elements of the packed vectors of an array; 0 if they are none. Without a packing: the last axis.
int unpacked_size(const mx::array& words, const RowPacking& packing, mx::Dtype dtype);

// Zeros, of which big ones take memory where they are touched only.
mx::array blank(const mx::Shape& shape, mx::Dtype dtype, mx::Stream s);
// The same for memory that is there.
void fill_with_zeros(char* begin, size_t size);

// What goes into the two buffers of a cache.
struct StoreInputs {
  // [B, K, S, D] each, of packed vectors where there is a packing. None: new ones of `slots` slots, zero where no token is written.
  std::optional<std::array<mx::array, 2>> buffers;
  int slots;
  // New keys [B, K, L, D], or the projection that becomes them.
  std::optional<mx::array> keys;
  std::optional<Projection> projection;
  mx::array values;
  // The slot of each row's first token: I32 [B] or [1].
  mx::array offsets;

  mx::Shape keys_shape() const {
    return keys ? keys->shape() : projection->shape();
  }
};
struct StoreOptions {
  RowPacking packing;
  // Slots are modulo their number.
  bool ring;
  // On the promises of mlxrs_force_donate. The plain form copies.
  bool in_place;
};
// Both buffers with the new tokens. Throws where parts do not fit each other.
Arrays store(const StoreInputs& of, const StoreOptions& options, mx::Stream s);
Arrays store_plainly(const StoreInputs& of, const StoreOptions& options, mx::Stream s);

} // namespace mlxrs::ops
