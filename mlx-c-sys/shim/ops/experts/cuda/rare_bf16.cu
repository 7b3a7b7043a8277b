// The experts' products for bf16 and the codings that are used less: 2, 3, 5 and 6 bits, mxfp8 and nvfp4.
#include "experts.cuh"

MLXRS_EXPERTS(affine2, bf16, Affine<bf16, 2>)
MLXRS_EXPERTS(affine3, bf16, Affine<bf16, 3>)
MLXRS_EXPERTS(affine5, bf16, Affine<bf16, 5>)
MLXRS_EXPERTS(affine6, bf16, Affine<bf16, 6>)
MLXRS_EXPERTS(mxfp8, bf16, Floats<bf16, 8, 32>)
MLXRS_EXPERTS(nvfp4, bf16, Floats<bf16, 4, 16>)
