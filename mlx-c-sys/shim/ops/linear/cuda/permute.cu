// x in the order of columns in which the products of warp groups read it.
#include "batch.cuh"

MLXRS_PERMUTES(adjacent)
MLXRS_PERMUTES(halves)
