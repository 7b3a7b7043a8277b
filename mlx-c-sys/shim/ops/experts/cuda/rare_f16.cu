// The experts' products for f16 and the codings that are used less: 2, 3, 5 and 6 bits, mxfp8 and nvfp4.
#include "experts.cuh"

MLXRS_EXPERTS(affine2, f16, Affine<f16, 2>)
MLXRS_EXPERTS(affine3, f16, Affine<f16, 3>)
MLXRS_EXPERTS(affine5, f16, Affine<f16, 5>)
MLXRS_EXPERTS(affine6, f16, Affine<f16, 6>)
MLXRS_EXPERTS(mxfp8, f16, Floats<f16, 8, 32>)
MLXRS_EXPERTS(nvfp4, f16, Floats<f16, 4, 16>)
