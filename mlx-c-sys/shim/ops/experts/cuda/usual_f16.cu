// The experts' products for f16 and the most used codings: dense, 4 and 8 bits, mxfp4.
#include "experts.cuh"

MLXRS_EXPERTS(affine4, f16, Affine<f16, 4>)
MLXRS_EXPERTS(affine8, f16, Affine<f16, 8>)
MLXRS_EXPERTS(mxfp4, f16, Floats<f16, 4, 32>)
MLXRS_EXPERTS(dense, f16, DenseCodes<f16>)
