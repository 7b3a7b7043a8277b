// The buffers of a KV cache: packing of vectors, and writing of new keys and values.
#pragma once

#include <array>

#include "ops/rope/rope.h"

namespace mlxrs::ops {

// Codes of 4 or 8 bits in groups of 32, 64 or 128 elements; two zeros mean no packing. Throws for other numbers.
RowPacking row_packing(int bits, int group);
// Packs vectors along the last axis in the format of RowPacking: [.., D] of floats -> [.., words] U32.
mx::array pack(const mx::array& x, const RowPacking& packing, mx::Stream s);
mx::array pack_plainly(const mx::array& x, const RowPacking& packing, mx::Stream s);
// Unpacks vectors to F32. `dtype` is the type of the scales and biases, which is the type of the elements before they
// were packed.
mx::array unpack_plainly(const mx::array& words, const RowPacking& packing, mx::Dtype dtype, mx::Stream s);
// The number of elements of each packed vector, or 0 if the last axis is not a packed vector. Without a packing, the
// length of the last axis.
int unpacked_size(const mx::array& words, const RowPacking& packing, mx::Dtype dtype);

// Zeros. Large arrays take memory only for the pages that are touched.
mx::array blank(const mx::Shape& shape, mx::Dtype dtype, mx::Stream s);
// The same for allocated memory.
void fill_with_zeros(char* begin, size_t size);

// The inputs of a store: buffers, new keys and values, and their slots.
struct StoreInputs {
  // The key buffer and the value buffer, [B, K, S, D] each, with packed vectors if there is a packing. Without buffers,
  // new ones with `slots` slots are made; slots that are not written are zeros.
  std::optional<std::array<mx::array, 2>> buffers;
  int slots;
  // Either the new keys [B, K, L, D], or the projection that the node computes them from.
  std::optional<mx::array> keys;
  std::optional<Projection> projection;
  mx::array values;
  // The position of each row's first token: I32 [B] or [1].
  mx::array offsets;
  // The projection of queries, whose heads are a third output. Only with a projection of keys.
  std::optional<Projection> queries = std::nullopt;

  mx::Shape keys_shape() const {
    return keys ? keys->shape() : projection->shape();
  }
};
struct StoreOptions {
  RowPacking packing;
  // The buffers are rings: position p goes to slot p mod S.
  bool ring;
  // Writes into the given buffers. The caller guarantees what mlxrs_update_in_place requires. The plain form copies the
  // buffers.
  bool in_place;

  bool operator==(const StoreOptions&) const = default;
};
// The shapes of both buffers. Throws if buffers, new keys, new values and offsets do not fit each other.
std::array<mx::Shape, 2> buffer_shapes(const StoreInputs& of, const RowPacking& packing);
// Both buffers with the new tokens, and the heads of queries if there are any. Throws if shapes or dtypes do not fit. Returns nothing for inputs that the GPU
// kernels do not support.
std::optional<Arrays> store(const StoreInputs& of, const StoreOptions& options, mx::Stream s);
Arrays store_plainly(StoreInputs of, const StoreOptions& options, mx::Stream s);

} // namespace mlxrs::ops
