#include "many.cuh"

MLXRS_MANY_OF(bf16)
