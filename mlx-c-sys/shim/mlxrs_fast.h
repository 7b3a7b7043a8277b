/* Fused operations of language models. The conventions are those of mlxrs.h.
 *
 * Each operation has a plain form, which is a graph of MLX's own operations. On CPUs it also has a kernel of ours, which
 * is one node for F32, F16 or BF16 arrays; on NVIDIA GPUs most have one for F16 and BF16. ops/form.h decides which form
 * runs. Inputs that our kernels do not support use the plain form.
 * An array may be null only where a comment says so. */
#ifndef MLXRS_FAST_H
#define MLXRS_FAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mlx/c/mlx.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mlxrs_op {
  MLXRS_OP_ATTENTION,
  MLXRS_OP_CONV,
  MLXRS_OP_DELTA,
  MLXRS_OP_EXPERTS,
  MLXRS_OP_GATED,
  MLXRS_OP_LINEAR,
  MLXRS_OP_LOOKUP,
  MLXRS_OP_LOSS,
  MLXRS_OP_NORM,
  MLXRS_OP_ROPE,
  MLXRS_OP_SAMPLE,
  MLXRS_OP_STORE,
} mlxrs_op;
typedef enum mlxrs_form {
  MLXRS_FORM_PLAIN,
  MLXRS_FORM_CPU,
  MLXRS_FORM_CUDA,
} mlxrs_form;
/* The form of an operation on a stream. Fails if MLX_CPU_KERNELS or MLX_CUDA_KERNELS is neither on nor off. */
int mlxrs_fast_form(mlxrs_form* res, mlxrs_op op, mlx_stream s);
/* Between mlxrs_fast_use_plain_forms(true) and mlxrs_fast_use_plain_forms(false), which nest, operations that this
 * thread builds use the plain form. */
void mlxrs_fast_use_plain_forms(bool begin);

/* x / sqrt(mean(x^2) + eps) * weight along the last axis. `weight` may be null. */
int mlxrs_fast_rms_norm(mlx_array* res, mlx_array x, mlx_array weight, float eps, mlx_stream s);
/* sum = residual + x, or residual + rms_norm(x, inner) if `inner` is not null. normed = rms_norm(sum, outer), or sum if
 * `outer` is null. */
int mlxrs_fast_add_norm(
    mlx_array* sum,
    mlx_array* normed,
    mlx_array x,
    mlx_array residual,
    mlx_array inner,
    mlx_array outer,
    float eps,
    mlx_stream s);

/* Rotary position embedding of x [B, .., L, D]. Exactly one of `base` and the array of periods is given. */
typedef struct mlxrs_rope_options {
  int dims;
  bool traditional;
  mlx_optional_float base;
  float scale;
} mlxrs_rope_options;
/* Token l of row b has position `offsets` [B] or [1] + l, or the position `offsets` [B, L] if it has two axes. `freqs`,
 * [dims / 2] or null, are periods. */
int mlxrs_fast_rope(
    mlx_array* res, mlx_array x, mlx_array offsets, mlx_array freqs, mlxrs_rope_options options, mlx_stream s);
/* Splits a projection x [B, L, H head_dim] into heads [B, H, L, head_dim]. If `weight` [head_dim] is not null, each head
 * is replaced by rms_norm(head, weight). Then the first `dims` elements are rotated with the periods `freqs`. The
 * positions follow from `offsets` as in mlxrs_fast_rope. */
typedef struct mlxrs_projection {
  mlx_array x;
  mlx_array weight; /* may be null */
  mlx_array freqs;
  mlx_array offsets;
  int head_dim;
  int dims;
  float eps;
} mlxrs_projection;
int mlxrs_fast_heads(mlx_array* res, mlxrs_projection of, mlx_stream s);

/* The keys that a query sees. NONE: all keys. CAUSAL: all keys up to the query's own; the last query's own key is the
 * last one. ARRAY: a mask as in mlx_fast_scaled_dot_product_attention. POSITIONS: computed from positions. */
typedef enum mlxrs_mask {
  MLXRS_MASK_NONE,
  MLXRS_MASK_CAUSAL,
  MLXRS_MASK_ARRAY,
  MLXRS_MASK_POSITIONS,
} mlxrs_mask;
/* The positions of the keys in S slots, for MLXRS_MASK_POSITIONS. Straight: slot j has position j. Ring: slot j has the
 * last position that is congruent to j modulo S. Behind: the last L slots have the queries' own positions, and the slots
 * before them have the positions before those. */
typedef enum mlxrs_slots {
  MLXRS_SLOTS_STRAIGHT,
  MLXRS_SLOTS_RING,
  MLXRS_SLOTS_BEHIND,
} mlxrs_slots;
typedef struct mlxrs_attention_options {
  float scale;
  float soft_cap; /* 0: none; else scores become soft_cap * tanh(score / soft_cap) */
  mlxrs_mask mask;
  mlxrs_slots slots;
  int window;     /* 0: none; else a query sees the last `window` positions, including its own */
  int bits;       /* 0: keys and values have the queries' dtype; else they are packed by mlxrs_fast_pack */
  int group_size;
} mlxrs_attention_options;
/* softmax(cap(scale q k^T) + mask) v, for queries [B, H, L, D], keys [B, K, S, D] and values [B, K, S, Dv]. `mask_or_offsets` is
 * the mask for MLXRS_MASK_ARRAY; for MLXRS_MASK_POSITIONS it is the position of each row's first query, I32 [B] or [1];
 * else null. `sinks`, [H] or null, are scores without a value that add to the sum of the softmax. Our kernels do not
 * read keys that positions exclude. */
int mlxrs_fast_attention(
    mlx_array* res,
    mlx_array queries,
    mlx_array keys,
    mlx_array values,
    mlx_array mask_or_offsets,
    mlx_array sinks,
    mlxrs_attention_options options,
    mlx_stream s);
/* The mask of MLXRS_MASK_POSITIONS as an array: true where a query sees a key, [B or 1, 1, queries, keys]. */
int mlxrs_fast_dense_mask(
    mlx_array* res, mlx_array offsets, int queries, int keys, mlxrs_slots slots, int window, mlx_stream s);

typedef struct mlxrs_store_options {
  int slots;      /* the slots of new buffers; 0 if buffers are given */
  int bits;       /* as in mlxrs_attention_options */
  int group_size;
  bool ring;      /* position p is in slot p mod the number of slots */
  bool in_place;  /* writes into the buffers, as mlxrs_update_in_place; the plain form copies them */
} mlxrs_store_options;
/* Writes new keys and values [B, K, L, D] into the key and value buffers [B, K, S, D] of a KV cache. Token l of row b has
 * position offsets[b] + l (I32 [B] or [1]). If both buffers are null, new ones are made, with zeros in slots that are not
 * written. */
int mlxrs_fast_store(
    mlx_array* first,
    mlx_array* second,
    mlx_array k_buffer,
    mlx_array v_buffer,
    mlx_array keys,
    mlx_array values,
    mlx_array offsets,
    mlxrs_store_options options,
    mlx_stream s);
/* The same for keys that are computed from a projection. The projection's offsets are also the positions. */
int mlxrs_fast_store_heads(
    mlx_array* first,
    mlx_array* second,
    mlx_array k_buffer,
    mlx_array v_buffer,
    mlxrs_projection keys,
    mlx_array values,
    mlxrs_store_options options,
    mlx_stream s);
/* mlxrs_fast_heads of `queries` and mlxrs_fast_store_heads, in one node if both projections have the same dtype: the heads of the
 * queries, and both buffers. */
int mlxrs_fast_heads_and_store(
    mlx_vector_array* res,
    mlxrs_projection queries,
    mlx_array k_buffer,
    mlx_array v_buffer,
    mlxrs_projection keys,
    mlx_array values,
    mlxrs_store_options options,
    mlx_stream s);
/* The tokens of a flat step: those of all B rows are on one axis, T. Row b brings the tokens starts[b] to
 * starts[b + 1] - 1, which may be none. Tokens from starts[B] on belong to no row: they are not stored, and their results
 * are zeros.
 * Before the step row b holds lens[b] positions, so its token t has position lens[b] + t - starts[b]. Its position p is in
 * slot p mod PAGE of page tables[b, (p / PAGE) mod P]. Entries that no query of the step can see are not read. A step
 * fails if an entry that is used is not a page of the pool, if `starts` does not ascend from 0 to T or less, or if the
 * positions that a row's tokens see have more than P pages.
 * A pool is [N, K, PAGE, D]: N pages of PAGE positions (a power of two from 16 to 256, MLXRS_PAGE by default) of K heads. */
#define MLXRS_PAGE 64
typedef struct mlxrs_pages {
  mlx_array starts; /* I32 [B + 1] */
  mlx_array lens;   /* I32 [B] */
  mlx_array tables; /* I32 [B, P] */
  int most;         /* no row brings more tokens; 0: T */
} mlxrs_pages;
/* What a query at position p of a flat step sees: the positions first to p + ahead of its own row, where first is the
 * largest of 0, p - window + 1 (if `window` is not 0) and p / chunk * chunk (if `chunk` is not 0). `mask` hides some of
 * them, where it is false, or is added to the scores; column j is position j, and positions after its last column must not
 * be seen. `slopes` are ALiBi's: slope * (key's position - p) is added to the scores of a head.
 * With `ahead` there are no pages, chunk or slopes.
 * Pages may hold NaN in positions that no query sees. Positions that only `mask` hides must hold numbers. */
typedef struct mlxrs_seen {
  int window;
  int chunk;
  int ahead;        /* INT_MAX: all positions after p */
  mlx_array mask;   /* Bool or floats [1 or H, T, S] (or [1 or H, 1, S] for all tokens); may be null */
  mlx_array slopes; /* F32 [H]; may be null */
} mlxrs_seen;
typedef struct mlxrs_flat_options {
  float scale;
  float soft_cap; /* as in mlxrs_attention_options, like the next two */
  int bits;
  int group_size;
  int value_dim;  /* 0, or for one pool of latents, whose first `value_dim` features are the values */
  int most;       /* without pages: no row brings more tokens; 0: T */
} mlxrs_flat_options;
/* mlxrs_fast_attention of queries [1, H, T, D] over pages: keys [N, K, PAGE, D] and values [N, K, PAGE, Dv]; the result is
 * [1, H, T, Dv]. `values` is null for latents. */
int mlxrs_fast_paged_attention(
    mlx_array* res,
    mlx_array queries,
    mlx_array keys,
    mlx_array values, /* may be null */
    mlxrs_pages pages,
    mlxrs_seen seen,
    mlx_array sinks, /* may be null */
    mlxrs_flat_options options,
    mlx_stream s);
/* The same for rows that hold no positions before the step, over the step's own keys [1, K, T, D] and values
 * [1, K, T, Dv]. `starts` is I32 [B + 1]. Without packing. */
int mlxrs_fast_ragged_attention(
    mlx_array* res,
    mlx_array queries,
    mlx_array keys,
    mlx_array values, /* may be null */
    mlx_array starts,
    mlxrs_seen seen,
    mlx_array sinks, /* may be null */
    mlxrs_flat_options options,
    mlx_stream s);

typedef struct mlxrs_paged_store_options {
  int bits;      /* as in mlxrs_attention_options */
  int group_size;
  bool in_place; /* writes into the pools, as mlxrs_update_in_place; so does the plain form */
} mlxrs_paged_store_options;
/* Writes the keys [1, K, T, D] and values [1, K, T, Dv] of a flat step into their pools. The results are the pools: one
 * for latents, for which `v_pool` and `values` are null. */
int mlxrs_fast_paged_store(
    mlx_vector_array* res,
    mlx_array k_pool,
    mlx_array v_pool, /* may be null */
    mlx_array keys,
    mlx_array values, /* may be null */
    mlxrs_pages pages,
    mlxrs_paged_store_options options,
    mlx_stream s);
/* The same for keys that are computed from a projection, whose offsets are the positions of the tokens, [1, T]. */
int mlxrs_fast_paged_store_heads(
    mlx_vector_array* res,
    mlx_array k_pool,
    mlx_array v_pool,
    mlxrs_projection keys,
    mlx_array values,
    mlxrs_pages pages,
    mlxrs_paged_store_options options,
    mlx_stream s);
/* mlxrs_fast_heads of `queries` and mlxrs_fast_paged_store_heads, as mlxrs_fast_heads_and_store: the heads of the queries,
 * and both pools. */
int mlxrs_fast_paged_heads_and_store(
    mlx_vector_array* res,
    mlxrs_projection queries,
    mlx_array k_pool,
    mlx_array v_pool,
    mlxrs_projection keys,
    mlx_array values,
    mlxrs_pages pages,
    mlxrs_paged_store_options options,
    mlx_stream s);
/* Zeros. Unlike mlx_zeros, a large array takes memory only for the pages that are touched. */
int mlxrs_fast_blank(mlx_array* res, const int* shape, size_t shape_num, mlx_dtype dtype, mlx_stream s);
/* Quantises the vectors along the last axis of x [.., D] to 4 or 8 `bits`, affinely, in groups of 32, 64 or 128. The
 * result is U32 [.., words]: first the codes (D * bits / 32 words, packed as by mlx_quantize), then the scale and the bias
 * of each group in the dtype of x. */
int mlxrs_fast_pack(mlx_array* res, mlx_array x, int bits, int group_size, mlx_stream s);
/* Unpacks vectors whose elements had type `dtype` to F32. Uses the plain form on every stream. */
int mlxrs_fast_unpack(mlx_array* res, mlx_array words, int bits, int group_size, mlx_dtype dtype, mlx_stream s);

/* A matrix [.., out, in]. If `scales` is not null, `weight` has codes that are packed as by mlx_quantize. If it is null,
 * the last three members are not used. */
typedef struct mlxrs_matrix {
  mlx_array weight;
  mlx_array scales; /* may be null */
  mlx_array biases; /* may be null */
  int group_size;
  int bits;
  const char* mode; /* may be null without scales */
} mlxrs_matrix;
/* x @ w.T. The same as mlx_quantized_matmul if `w` is quantised. */
int mlxrs_fast_linear(mlx_array* res, mlx_array x, mlxrs_matrix w, mlx_stream s);
/* The products of x with `n` matrices. They are one node if all matrices have the same coding and x has 16-bit
 * elements. */
int mlxrs_fast_linear_many(mlx_vector_array* res, mlx_array x, const mlxrs_matrix* ws, size_t n, mlx_stream s);
/* For each index i, x [.., 1, in] times the transpose of matrix i of w [experts, out, in]. The same as mlx_gather_mm or
 * mlx_gather_qmm without left indices. */
int mlxrs_fast_experts(mlx_array* res, mlx_array x, mlxrs_matrix w, mlx_array indices, mlx_stream s);
/* How experts are chosen by scores [N, E]: those with the largest softmax or sigmoid plus `correction`. */
typedef struct mlxrs_route_options {
  int top_k;
  bool sigmoid;
  bool norm;       /* weights are divided by their sum plus `added`, or by `least_sum` if that is larger */
  float added;     /* of sigmoids at least 1e-20, which keeps the division finite */
  float least_sum;
  float scale;     /* all weights are multiplied with this */
  int groups;      /* 0: none; else experts are only chosen from the `top_groups` best groups */
  int top_groups;
  bool two_best;   /* groups are compared by the sum of their two best experts, not by their best */
} mlxrs_route_options;
/* Returns the chosen experts, U32 [N, top_k], and their weights, F32 [N, top_k]. `correction`, F32 [E] or null, changes
 * the choice, but not the weights. */
int mlxrs_fast_route(
    mlx_array* experts, mlx_array* weights, mlx_array scores, mlx_array correction, mlxrs_route_options options, mlx_stream s);
/* The sum over k of y[n, k] weights[n, k], for y [N, K, E] and weights F32 [N, K]. */
int mlxrs_fast_weighted_sum(mlx_array* res, mlx_array y, mlx_array weights, mlx_stream s);
/* The rows of w [rows, in] that `indices` select, in `dtype`. The same as mlx_take, followed by mlx_dequantize if `w` is
 * quantised. */
int mlxrs_fast_lookup(mlx_array* res, mlx_array indices, mlxrs_matrix w, mlx_dtype dtype, mlx_stream s);

/* gate * sigmoid(gate) * up, or gelu(gate) * up with the tanh approximation of gelu. */
typedef enum mlxrs_gate {
  MLXRS_GATE_SILU,
  MLXRS_GATE_GELU_TANH,
} mlxrs_gate;
int mlxrs_fast_gated(mlx_array* res, mlxrs_gate kind, mlx_array gate, mlx_array up, mlx_stream s);
/* mlxrs_fast_gated(x @ gate.T, x @ up.T). It is one node under the conditions of mlxrs_fast_linear_many. Then the
 * products are never whole in memory. */
int mlxrs_fast_gated_linear(
    mlx_array* res, mlxrs_gate kind, mlx_array x, mlxrs_matrix gate, mlxrs_matrix up, mlx_stream s);
/* The norm of x, or with a residual the results of mlxrs_fast_add_norm. */
typedef struct mlxrs_norm {
  mlx_array x;
  mlx_array residual; /* may be null */
  mlx_array inner;    /* may be null; null without a residual */
  mlx_array weight;   /* may be null without a residual */
  float eps;
} mlxrs_norm;
/* A norm, and its products with `n` matrices: the sum (x without a residual), the norm, and the products. It is one node under the
 * conditions of mlxrs_fast_linear_many, also for one matrix. */
int mlxrs_fast_norm_linear(mlx_vector_array* res, mlxrs_norm norm, const mlxrs_matrix* ws, size_t n, mlx_stream s);
/* The same for mlxrs_fast_gated_linear: the sum, the norm, and the gated product. */
int mlxrs_fast_norm_gated_linear(
    mlx_vector_array* res, mlxrs_gate kind, mlxrs_norm norm, mlxrs_matrix gate, mlxrs_matrix up, mlx_stream s);
/* mlxrs_fast_gated of two results of mlxrs_fast_experts, for two stacks of matrices. */
int mlxrs_fast_gated_experts(
    mlx_array* res, mlxrs_gate kind, mlx_array x, mlxrs_matrix gate, mlxrs_matrix up, mlx_array indices, mlx_stream s);
/* cap * tanh(x / cap) */
int mlxrs_fast_soft_cap(mlx_array* res, mlx_array x, float cap, mlx_stream s);

/* Reductions along the last axis. argmax: the index of the largest element, the first of equal ones. top: the n largest
 * elements in descending order, equal ones by ascending index. nucleus: for rows [B, V] the smallest element that top-p
 * keeps, [B, 1]: a token is kept if the tokens that are likelier have a total probability below p [B, 1]. Our kernels
 * never choose NaN. */
int mlxrs_fast_argmax(mlx_array* res, mlx_array x, mlx_stream s);
int mlxrs_fast_top(mlx_array* ids, mlx_array* values, mlx_array x, int n, mlx_stream s);
int mlxrs_fast_nucleus(mlx_array* res, mlx_array x, mlx_array p, mlx_stream s);
/* log(sum(e^x)) along the last axis, F32. */
int mlxrs_fast_logsumexp(mlx_array* res, mlx_array x, mlx_stream s);
/* Draws the next token of each row of logits [B, V]. `ids` and `checked`, U32 [B], are the tokens; a row with a NaN logit
 * or without a finite one has 0 in `ids` and ~0 in `checked`. There is no plain form here. `keys`, U32 [B, 2], seed each
 * row's noise. `numbers`, F32 [B, 3]: the factor of the logits (0 selects the largest, without noise), p of top-p, and how
 * far below the largest a logit may be, as a negative number. `counts`, I32 [B]: k of top-k. A row without these filters
 * has p = 1, minus infinity and k = V. */
int mlxrs_fast_draw(
    mlx_array* ids, mlx_array* checked, mlx_array x, mlx_array keys, mlx_array numbers, mlx_array counts, mlx_stream s);
/* Logits [B, V] with minus infinity for each token whose bit is 0 in its row's mask, U32 [B, ceil(V / 32)]. NaN and plus
 * infinity are not changed. There is only a CUDA kernel. */
int mlxrs_fast_allow(mlx_array* res, mlx_array x, mlx_array bits, mlx_stream s);
/* logsumexp(logits) - logits[target] along the last axis. It is one node for f32 logits. */
int mlxrs_fast_cross_entropy(mlx_array* res, mlx_array logits, mlx_array targets, mlx_stream s);

#ifdef __cplusplus
}
#endif

#endif
