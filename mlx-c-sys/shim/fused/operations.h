// The fused operations, for whom builds graphs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mlx/ops.h"

#include "kernels.h"

namespace mlxrs::fused {

namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;

// Each gives the operation as one node, or nothing where only MLX's own will do.
std::optional<mx::array> rms_norm(
    const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s);

// residual + x, or residual + rms_norm(x, inner); and rms_norm of that sum with `weight`, where there is one.
std::optional<Arrays> add_norm(
    const mx::array& x,
    const mx::array& residual,
    const std::optional<mx::array>& inner,
    const std::optional<mx::array>& weight,
    float eps,
    mx::Stream s);

struct RopeOptions {
  int dims;
  bool traditional;
  std::optional<float> base;
  float scale;
};
std::optional<mx::array> rope(
    const mx::array& x,
    const RopeOptions& options,
    const mx::array& offset,
    const std::optional<mx::array>& freqs,
    mx::Stream s);
// [B, L, H D] -> [B, H, L, D]: heads apart, rms_norm where there is a weight, rope with `freqs`.
std::optional<mx::array> heads(
    const mx::array& x,
    int dim,
    const std::optional<mx::array>& weight,
    float eps,
    const RopeOptions& options,
    const mx::array& offset,
    const mx::array& freqs,
    mx::Stream s);

// Who sees whom. `placed` is told by `offsets`, the position of each row's first query: a query sees what is at or before
// its own position, and with a window only the last so many positions, its own included.
enum class Seen { all, causal, masked, placed };
// Where the keys of `placed` are. `straight`: slot j has position j. `ring`: slot j of S has the last position congruent
// to j. `behind`: slot j has position offset - (S - L) + j, so that the last L slots have the queries' own.
enum class Layout { straight, ring, behind };

struct AttentionOptions {
  float scale, cap; // cap 0: none
  Seen seen;
  Layout layout;
  int window; // 0: none
  RowPacking packing; // of keys and values
};
// `told`: the mask of `masked`, or the offsets of `placed`. `sinks`: [H], f32.
std::optional<mx::array> attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const AttentionOptions& options,
    const std::optional<mx::array>& told,
    const std::optional<mx::array>& sinks,
    mx::Stream s);
// True where a query of `placed` sees a key: [B or 1, 1, L, S].
mx::array placed_mask(int queries, int slots, const AttentionOptions& options, const mx::array& offsets, mx::Stream s);
mx::array attention_plainly(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const AttentionOptions& options,
    const std::optional<mx::array>& told,
    const std::optional<mx::array>& sinks,
    mx::Stream s);

// `in`: two buffers [B, K, S, D], what is new for each [B, K, L, D], and offsets, I32 [B] or [1]: both buffers with the new
// tokens in slots from the offsets on, modulo S in a ring. With `in_place` the promises of mlxrs_force_donate. Where there
// is a packing the buffers hold packed vectors, U32, and what is new is packed. Buffers that are `blank` and keys that are `heads`
// are made by this node, if nobody has computed them yet.
Arrays store(const Arrays& in, const RowPacking& packing, bool ring, bool in_place, mx::Stream s);
Arrays store_plainly(const Arrays& in, const RowPacking& packing, bool ring, mx::Stream s);

// Of 4 or 8 bits and a group that MLX has, or none of both.
RowPacking row_packing(int bits, int group);
// Vectors along the last axis as RowPacking says: [.., D] of floating point -> [.., words] U32, and back.
mx::array pack(const mx::array& x, const RowPacking& packing, mx::Stream s);
mx::array pack_plainly(const mx::array& x, const RowPacking& packing, mx::Stream s);
mx::array unpack_plainly(const mx::array& words, const RowPacking& packing, mx::Dtype dtype, mx::Stream s);
// Elements of the packed vectors of an array; 0 if they are none. Without a packing: the last axis.
int unpacked_size(const mx::array& words, const RowPacking& packing, mx::Dtype dtype);

std::optional<mx::array> linear(const mx::array& x, const mx::array& weight, mx::Stream s);

// How the codes of a quantised matrix are written, in MLX's words.
struct Packing {
  int group, bits;
  std::string mode;
};
std::optional<mx::array> packed_linear(
    const mx::array& x,
    const mx::array& packed,
    const mx::array& scales,
    const std::optional<mx::array>& biases,
    const Packing& packing,
    mx::Stream s);
// The same arrays, as outputs of one node if they are products of one array, not yet computed, with matrices that are written alike.
Arrays together(const Arrays& products, mx::Stream s);

// A matrix or several, packed where there are scales.
struct Parts {
  mx::array weight;
  std::optional<mx::array> scales, biases;
  Packing packing;
};
// Of matrices [experts, out, in].
std::optional<mx::array> experts(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);
mx::array packed_plainly(
    const mx::array& x, const mx::array& w, const mx::array& scales, const std::optional<mx::array>& biases,
    const Packing& packing, mx::Stream s);
mx::array experts_plainly(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);
// Rows of a matrix, [..] -> [.., in].
std::optional<mx::array> lookup(const mx::array& indices, const Parts& w, mx::Dtype dtype, mx::Stream s);
mx::array lookup_plainly(const mx::array& indices, const Parts& w, mx::Dtype dtype, mx::Stream s);

// Zeros, of which big ones take memory where they are touched only.
mx::array blank(const mx::Shape& shape, mx::Dtype dtype, mx::Stream s);
// Whether an array is to be such zeros on this stream, and nobody has computed it yet.
bool is_blank(const mx::array& a, mx::Stream s);
// The same for memory that is there.
void fill_with_zeros(char* begin, size_t size);

// What stands between the halves of a gated MLP.
enum class Gate { silu, gelu_tanh };
std::optional<mx::array> gated(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s);
mx::array gated_plainly(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s);
// gate(x) · up as a node of its own, and as one with the products that x and up are, if they are products of one array, not yet computed.
mx::array gated_apart(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s);
std::optional<mx::array> gated_products(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s);
// logsumexp(logits) - logits[target] over the last axis.
std::optional<mx::array> cross_entropy(const mx::array& logits, const mx::array& targets, mx::Stream s);
// U32: the first of the largest along the last axis; numbers only.
std::optional<mx::array> argmax(const mx::array& x, mx::Stream s);
// Along the last axis, in f32.
std::optional<mx::array> logsumexp(const mx::array& x, mx::Stream s);
mx::array logsumexp_plainly(const mx::array& x, mx::Stream s);
// The n largest along the last axis, best first, equal ones in the order of their ids: ids (U32) and values.
std::optional<Arrays> top(const mx::array& x, int n, mx::Stream s);
Arrays top_plainly(const mx::array& x, int n, mx::Stream s);
// [B, 1]: the least of x [B, V] that is kept when the likeliest are kept while those before have less than p [B, 1].
std::optional<mx::array> nucleus(const mx::array& x, const mx::array& p, mx::Stream s);
mx::array nucleus_plainly(const mx::array& x, const mx::array& p, mx::Stream s);
// How rows of x [B, V] draw: keys, U32 [B, 2], of their noise; [B, 3] what logits are multiplied by (0: the largest is taken), p of the
// nucleus and the least logit below the largest; I32 [B]: how many of the largest take part. 1, minus infinity and V for none. All
// dense. U32 [B]; ~0 where the logits are no numbers.
std::optional<mx::array> draw(
    const mx::array& x, const mx::array& keys, const mx::array& numbers, const mx::array& counts, mx::Stream s);
// cap tanh(x / cap)
std::optional<mx::array> soft_cap(const mx::array& x, float cap, mx::Stream s);
mx::array soft_cap_plainly(const mx::array& x, float cap, mx::Stream s);

} // namespace mlxrs::fused
