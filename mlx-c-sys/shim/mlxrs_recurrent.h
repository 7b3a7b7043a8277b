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
} mlxrs_gated_delta;
/* For each token, with q = q / |q| / sqrt(D), k = k / |k|, beta = sigmoid(b) and g = exp(-rate softplus(a + bias)):
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

#ifdef __cplusplus
}
#endif

#endif
