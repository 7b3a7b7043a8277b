#include "many.cuh"

MLXRS_MANY_OF(f16)
