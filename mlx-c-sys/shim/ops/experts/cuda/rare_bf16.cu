#include "experts.cuh"

MLXRS_EXPERTS(affine2, bf16, Affine<bf16, 2>)
MLXRS_EXPERTS(affine3, bf16, Affine<bf16, 3>)
MLXRS_EXPERTS(affine5, bf16, Affine<bf16, 5>)
MLXRS_EXPERTS(affine6, bf16, Affine<bf16, 6>)
MLXRS_EXPERTS(mxfp8, bf16, Floats<bf16, 8, 32>)
MLXRS_EXPERTS(nvfp4, bf16, Floats<bf16, 4, 16>)
