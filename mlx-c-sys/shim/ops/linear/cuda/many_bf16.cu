// Products with many rows of x, in bf16.
#include "many.cuh"

MLXRS_MANY_OF(bf16)
