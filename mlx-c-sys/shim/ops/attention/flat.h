// Attention of a flat step: the queries of all rows are on one axis, [1, H, T, D]. Keys and values are in pages, or are
// the step's own ([1, K, T, D]).
#pragma once

#include "attention.h"
#include "ops/pages.h"

namespace mlxrs::ops {

struct FlatOptions {
  float scale, cap;   // cap 0: no soft cap
  int window, chunk;  // 0: none (see mlxrs_seen)
  RowPacking packing; // the format of keys and values
  int value_dim;      // for latents, the features that are values; else 0
  int ahead = 0;      // positions after its own that a query sees (see mlxrs_seen)
  int most = 0;       // no row brings more tokens; 0: the number of all tokens

  bool operator==(const FlatOptions&) const = default;
};
struct FlatInputs {
  // Pools [N, K, PAGE, D] and [N, K, PAGE, Dv], or the step's own [1, K, T, D] and [1, K, T, Dv]. No values for latents.
  mx::array q, k;
  std::optional<mx::array> v;
  FlatRows rows;
  // Bool or F32 [1 or H, 1 or T, S]: column j is position j.
  std::optional<mx::array> mask;
  std::optional<mx::array> slopes; // F32 [H]
  std::optional<mx::array> sinks;  // F32 [H]

  // The inputs of a node, in the order of the members.
  Arrays all() const;
};

// Throws if shapes or dtypes do not fit each other.
void check_flat(const FlatInputs& of, const FlatOptions& options);
// The first position that a query at position `at` sees.
mx::array first_seen(const mx::array& at, const FlatOptions& options, mx::Stream s);
// Whether a position is not behind the last one that a query at position `at` sees. The row may end before that.
mx::array is_before_end(const mx::array& position, const mx::array& at, const FlatOptions& options, mx::Stream s);
// The length of a value.
int value_size(const FlatInputs& of, const FlatOptions& options);
std::optional<mx::array> flat_attention(const FlatInputs& of, const FlatOptions& options, mx::Stream s);
mx::array flat_attention_plainly(const FlatInputs& of, const FlatOptions& options, mx::Stream s);

} // namespace mlxrs::ops
