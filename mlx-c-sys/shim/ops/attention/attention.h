// Scaled dot-product attention.
#pragma once

#include "ops/derivative.h"

namespace mlxrs::ops {

// Which keys a query sees. With `positions` a query sees the keys at its own position and before it. A window limits them to
// the last `window` positions, its own included. The position of each row's first query is an input.
enum class Mask {
  none = MLXRS_MASK_NONE,
  causal = MLXRS_MASK_CAUSAL,
  array = MLXRS_MASK_ARRAY,
  positions = MLXRS_MASK_POSITIONS,
};
// The position of each slot's key. `straight`: slot j has position j. `ring`: slot j of S has the last position congruent
// to j. `behind`: slot j has position offset - (S - L) + j, so that the last L slots have the queries' own.
enum class Layout {
  straight = MLXRS_SLOTS_STRAIGHT,
  ring = MLXRS_SLOTS_RING,
  behind = MLXRS_SLOTS_BEHIND,
};

struct AttentionOptions {
  float scale, cap; // cap 0: none
  Mask mask;
  Layout layout;
  int window; // 0: none
  RowPacking packing; // of keys and values

  bool operator==(const AttentionOptions&) const = default;
};
struct AttentionInputs {
  const mx::array &q, &k, &v;
  // The array of Mask::array, or the offsets of Mask::positions.
  std::optional<mx::array> told;
  // [H]: for each head, the score of one more token, which has no value.
  std::optional<mx::array> sinks;
};
std::optional<mx::array> attention(const AttentionInputs& of, const AttentionOptions& options, mx::Stream s);
mx::array attention_plainly(const AttentionInputs& of, const AttentionOptions& options, mx::Stream s);

// True where a query of `positions` sees a key: [B or 1, 1, L, S].
mx::array dense_mask(
    int queries, int slots, Layout layout, int window, const mx::array& offsets, mx::Stream s);

// Mask::positions must be passed as an array here (dense_mask).
Arrays attention_vjp(std::shared_ptr<Node> of, const AttentionOptions& options, const Arrays& primals,
                     const mx::array& dy, const std::vector<int>& argnums);

} // namespace mlxrs::ops
