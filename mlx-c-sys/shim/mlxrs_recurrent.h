/* Fused operations of recurrent layers. The conventions are those of mlxrs.h. */
#ifndef MLXRS_RECURRENT_H
#define MLXRS_RECURRENT_H

#include <stdbool.h>

#include "mlx/c/mlx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A causal convolution of each channel: y[b, t, c] = sum over j of x[b, t + j, c] taps[j, c] + bias[c], then SiLU if
 * `silu`. x [B, J - 1 + L, C], taps [J, C], bias [C] or null; the result is [B, L, C]. */
int mlxrs_fast_causal_conv(mlx_array* res, mlx_array x, mlx_array taps, mlx_array bias, bool silu, mlx_stream s);

/* The inputs of the gated delta rule. */
typedef struct mlxrs_gated_delta {
  mlx_array qkv;    /* [B, L, 2 K D + H V]: queries and keys of `key_heads` = K heads, values of H heads */
  mlx_array a;      /* [B, L, H], or [B, L, H D] with a decay for each channel of a key */
  mlx_array b;      /* [B, L, H] */
  mlx_array rate;   /* F32 [H] */
  mlx_array bias;   /* F32 [H], or [H D]: as the last axis of `a` */
  mlx_array state;  /* F32 [B, H, V, D] */
  mlx_array widths; /* I32 [B]: the real tokens of a row. Tokens after them do not change the state, and their output is 0. */
  int key_heads;
  float most;  /* the largest beta */
  float bound; /* 0, or the negative number above which log g stays */
} mlxrs_gated_delta;
/* For each token, with q = q / |q| / sqrt(D), k = k / |k|, beta = most sigmoid(b) and log g = -rate softplus(a + bias), or
 * with a bound log g = bound sigmoid(rate (a + bias)):
 * S <- g S, S <- S + beta (v - S k) k^T, y = S q. `y` is [B, L, H V], `after` is S after each row's last token. */
int mlxrs_fast_gated_delta(mlx_array* y, mlx_array* after, mlxrs_gated_delta of, mlx_stream s);

/* The inputs of the scan of Mamba 2. */
typedef struct mlxrs_scan {
  mlx_array x;      /* [B, L, H P + 2 G N]: values of H heads, keys and queries (`B`, `C`) of `groups` = G heads */
  mlx_array dt;     /* [B, L, H] */
  mlx_array rate;   /* F32 [H] */
  mlx_array bias;   /* F32 [H] */
  mlx_array skip;   /* F32 [H] */
  mlx_array state;  /* F32 [B, H, P, N] */
  mlx_array widths; /* I32 [B]: as for the gated delta rule */
  int groups;
  float least, most; /* bounds of a time step */
} mlxrs_scan;
/* For each token, with d = softplus(dt + bias) clamped to least ..= most:
 * S <- exp(-rate d) S + d x k^T, y = S q + skip x. `y` is [B, L, H P], `after` is S after each row's last token. */
int mlxrs_fast_scan(mlx_array* y, mlx_array* after, mlxrs_scan of, mlx_stream s);

/* Ragged rows: the tokens of all rows are one axis of T tokens, and row b has the tokens starts[b] .. starts[b + 1].
 * Tokens from starts[B] on belong to no row; they change nothing, and their outputs are 0. A row may have no tokens.
 *
 * States are kept in a pool of slots. Without a pool each row begins with zeros, and no state is returned. A slot of
 * `to` must occur once in it, and may be the `from` of its own row only. `from` and `to` of rows and tokens without a
 * state are -1. On the CPU, `starts`, `from` and `to` are checked when the node runs, and the node fails. Kernels of
 * GPUs ignore what is out of range. */
typedef struct mlxrs_ragged {
  mlx_array starts; /* I32 [B + 1]: ascending, starts[0] = 0, starts[B] <= T */
  int longest;      /* no row has more tokens, 1 ..= T. The plain form computes NaN for a longer row. */
  mlx_array pool;   /* [slots, ..], or null. It is dense. */
  mlx_array from;   /* I32 [B]: the slot with a row's state before its tokens, or -1 for zeros. Null without a pool. */
  mlx_array to;     /* I32 [T] if `each`: the slot that gets the state after a token, or -1.
                     * Else I32 [B]: the slot that gets the state after a row's last token, or -1. Null without a pool. */
  bool each;
  bool in_place; /* The pool is written in place, on the conditions of mlxrs_update_in_place. The plain form copies it. */
} mlxrs_ragged;

/* mlxrs_fast_causal_conv of ragged rows: y[t, c] = sum over j of input[t - (J - 1) + j, c] taps[j, c] + bias[c], then SiLU
 * if `silu`. Inputs before a row's first token are those of its state: a slot is [J - 1, C], the last inputs of a row.
 * x [1, T, C], pool [slots, J - 1, C] in the dtype of x. `res` gets y [1, T, C], and the pool if there is one. */
int mlxrs_fast_ragged_conv(
    mlx_vector_array* res, mlx_array x, mlx_array taps, mlx_array bias, bool silu, mlxrs_ragged rows, mlx_stream s);

/* mlxrs_fast_gated_delta of ragged rows: qkv, a and b are [1, T, ..], D is `key_dim`. `of.state` and `of.widths` are null:
 * a slot of the pool is F32 [H, V, D]. `res` gets y [1, T, H V], and the pool if there is one. */
int mlxrs_fast_ragged_delta(
    mlx_vector_array* res, mlxrs_gated_delta of, int key_dim, mlxrs_ragged rows, mlx_stream s);

/* mlxrs_fast_scan of ragged rows: x and dt are [1, T, ..], N is `key_dim`. `of.state` and `of.widths` are null: a slot of
 * the pool is F32 [H, P, N]. `res` gets y [1, T, H P], and the pool if there is one. */
int mlxrs_fast_ragged_scan(mlx_vector_array* res, mlxrs_scan of, int key_dim, mlxrs_ragged rows, mlx_stream s);

#ifdef __cplusplus
}
#endif

#endif
