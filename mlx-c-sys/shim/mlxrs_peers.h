/* Sums of small arrays over the GPUs of one machine, each of them another process's. Like mlxrs.h in its conventions. */
#ifndef MLXRS_PEERS_H
#define MLXRS_PEERS_H

#include <stdbool.h>

#include "mlx/c/mlx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The bytes by which another process finds the memory of this one. */
#define MLXRS_PEERS_HANDLE 64
/* The most ranks. */
#define MLXRS_PEERS_MOST 8

/* Allocates the memory of this rank that the others write to, once in a process, on the default GPU. Writes
 * MLXRS_PEERS_HANDLE bytes for them. */
int mlxrs_peers_offer(unsigned char* handle);
/* Opens the memory of `size` ranks by their handles, one after another. This process is `rank`. */
int mlxrs_peers_open(const unsigned char* handles, int rank, int size);
/* Whether mlxrs_peers_sum can add x: the memory is open, the stream is of the GPU, and x is BF16, F16 or F32 outside of
 * transforms, of a multiple of 16 bytes, at most 1 MiB / (size - 1). */
int mlxrs_peers_takes(bool* res, mlx_array x, mlx_stream s);
/* The sum of all ranks' x, the same bits on all of them: elements are added in F32 in the order of the ranks. All ranks
 * must call it in the same order. */
int mlxrs_peers_sum(mlx_array* res, mlx_array x, mlx_stream s);

#ifdef __cplusplus
}
#endif

#endif
