// The experts' products for bf16 and the most used codings: dense, 4 and 8 bits, mxfp4.
#include "experts.cuh"

MLXRS_EXPERTS(affine4, bf16, Affine<bf16, 4>)
MLXRS_EXPERTS(affine8, bf16, Affine<bf16, 8>)
MLXRS_EXPERTS(mxfp4, bf16, Floats<bf16, 4, 32>)
MLXRS_EXPERTS(dense, bf16, DenseCodes<bf16>)
