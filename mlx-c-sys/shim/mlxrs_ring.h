/* The C interface to the failures of MLX's ring (runtime/ring.h). Like mlxrs.h in its conventions. */
#ifndef MLXRS_RING_H
#define MLXRS_RING_H

#include <stddef.h>

#include "mlx/c/mlx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names MLX's ring and gives the library its connections: `sockets`, which the caller never closes, and the rank at the
 * other end of each. When a connection is lost, all are shut, and no later collective is run; it fails with the first
 * reason. MLX itself would wait for ever. */
int mlxrs_ring_watch(const char* name, const int* sockets, const int* ranks, size_t n);
/* Makes the sums (float32, float16, bfloat16) and gathers of up to 2 MiB of `group`, a ring of two ranks, one exchange over
 * `socket`. Both ranks call it, with the ends of the same connection, which is one of mlxrs_ring_watch. A later call gives
 * the group of the first one. */
int mlxrs_ring_pair(mlx_distributed_group* group, int socket);
/* Shuts the connections, so that collectives of this rank, and in turn those of all others, end with an error. */
int mlxrs_ring_shut(const char* reason);
/* Why the ring was lost, or "" while it works. */
int mlxrs_ring_lost(mlx_string* res);

#ifdef __cplusplus
}
#endif

#endif
