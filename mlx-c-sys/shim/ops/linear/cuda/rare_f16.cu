// Products with few rows of x, for f16 and the codings that are used less.
#include "product.cuh"

MLXRS_PRODUCTS(affine2_f16, mlxrs::cuda::f16, Affine<f16, 2>)
MLXRS_PRODUCTS(affine3_f16, mlxrs::cuda::f16, Affine<f16, 3>)
MLXRS_PRODUCTS(affine5_f16, mlxrs::cuda::f16, Affine<f16, 5>)
MLXRS_PRODUCTS(affine6_f16, mlxrs::cuda::f16, Affine<f16, 6>)
MLXRS_PRODUCTS(mxfp4_f16, mlxrs::cuda::f16, Floats<f16, 4, 32>)
MLXRS_PRODUCTS(mxfp8_f16, mlxrs::cuda::f16, Floats<f16, 8, 32>)
MLXRS_PRODUCTS(nvfp4_f16, mlxrs::cuda::f16, Floats<f16, 4, 16>)
