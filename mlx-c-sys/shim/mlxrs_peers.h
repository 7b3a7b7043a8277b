/* The C interface to exchanges of the GPUs of one machine over each other's memory (ops/peers). Like mlxrs.h in its
 * conventions. */
#ifndef MLXRS_PEERS_H
#define MLXRS_PEERS_H

#include <stdint.h>

#include "mlx/c/mlx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The bytes of a handle of a rank's memory. */
#define MLXRS_PEER_HANDLE 64

/* Allocates the memory of this rank for exchanges, at the first call, and writes its handle. Fails where there is no such
 * memory: without CUDA, for too many ranks, with MLX_CUDA_PEERS=off. */
int mlxrs_peers_offer(mlx_distributed_group group, uint8_t* handle);
/* Maps the memory of the other ranks: `handles` are those of all ranks, in their order. */
int mlxrs_peers_map(mlx_distributed_group group, const uint8_t* handles);
/* Makes the sums (float32, float16, bfloat16) and gathers of small messages of `group`, a group of NCCL, exchanges over the
 * mapped memory. Every rank calls it, after all have mapped. A later call gives the group of the first one. */
int mlxrs_peers_use(mlx_distributed_group* group);

#ifdef __cplusplus
}
#endif

#endif
