// Products with many rows of x, in f16.
#include "many.cuh"

MLXRS_MANY_OF(f16)
