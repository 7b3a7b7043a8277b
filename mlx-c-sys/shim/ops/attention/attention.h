// Scaled dot-product attention with grouped queries: y = softmax(cap(scale q k^T) + mask) v, for q [B, H, L, D], k [B,
// K, S, D] and v [B, K, S, Dv]; the result is [B, H, L, Dv].
#pragma once

#include "ops/derivative.h"

namespace mlxrs::ops {

// Which keys a query sees. With `positions`, each key and query has a position, and a query sees the keys at its own
// position and before it. A window limits these to the last `window` positions, including the query's own. The position
// of each row's first query is an input (`mask_or_offsets`).
enum class Mask {
  none = MLXRS_MASK_NONE,
  causal = MLXRS_MASK_CAUSAL,
  array = MLXRS_MASK_ARRAY,
  positions = MLXRS_MASK_POSITIONS,
};
// The positions of the keys in the S slots of the KV cache. `straight`: slot j has position j. `ring`: slot j has the
// last position that is congruent to j modulo S. `behind`: slot j has position offset - (S - L) + j, so the last L
// slots have the queries' own positions.
enum class Layout {
  straight = MLXRS_SLOTS_STRAIGHT,
  ring = MLXRS_SLOTS_RING,
  behind = MLXRS_SLOTS_BEHIND,
};

struct AttentionOptions {
  float scale, cap; // cap 0: no soft cap
  Mask mask;
  Layout layout;
  int window; // 0: no window
  RowPacking packing; // the format of keys and values

  bool operator==(const AttentionOptions&) const = default;
};
struct AttentionInputs {
  const mx::array &q, &k, &v;
  // The mask of Mask::array, or the offsets of Mask::positions.
  std::optional<mx::array> mask_or_offsets;
  // [H]: for each head, the score of an attention sink, which adds to the softmax's sum and has no value.
  std::optional<mx::array> sinks;
};
std::optional<mx::array> attention(const AttentionInputs& of, const AttentionOptions& options, mx::Stream s);
mx::array attention_plainly(const AttentionInputs& of, const AttentionOptions& options, mx::Stream s);

// Allocates a result [B, H, L, Dv] in the memory order [B, L, H, Dv], so that merging the heads needs no copy. Returns
// whether it has elements.
bool allocate_result(mx::array& y);

// The mask of Mask::positions as booleans, true where a query sees a key: [B or 1, 1, L, S].
mx::array dense_mask(
    int queries, int slots, Layout layout, int window, const mx::array& offsets, mx::Stream s);

// The gradients of attention. Callers convert Mask::positions to Mask::array with dense_mask. `of` is a copy of the
// operation's node, because MLX owns the node itself.
Arrays attention_vjp(std::shared_ptr<Node> of, const AttentionOptions& options, const Arrays& primals,
                     const mx::array& dy, const std::vector<int>& argnums);
// The same for a causal mask or none, and a mask array if there is one. If `flat`, the inputs are those of a step without
// pages, [q, k, v, starts], then the mask [1 or H, 1 or T, S].
Arrays attention_vjp(
    std::shared_ptr<Node> of, float scale, bool causal, bool flat, const Arrays& primals, const mx::array& dy,
    const std::vector<int>& argnums);

} // namespace mlxrs::ops
