// Products with few rows of x, for bf16 and the codings that are used less.
#include "product.cuh"

MLXRS_PRODUCTS(affine2_bf16, mlxrs::cuda::bf16, Affine<bf16, 2>)
MLXRS_PRODUCTS(affine3_bf16, mlxrs::cuda::bf16, Affine<bf16, 3>)
MLXRS_PRODUCTS(affine5_bf16, mlxrs::cuda::bf16, Affine<bf16, 5>)
MLXRS_PRODUCTS(affine6_bf16, mlxrs::cuda::bf16, Affine<bf16, 6>)
MLXRS_PRODUCTS(mxfp4_bf16, mlxrs::cuda::bf16, Floats<bf16, 4, 32>)
MLXRS_PRODUCTS(mxfp8_bf16, mlxrs::cuda::bf16, Floats<bf16, 8, 32>)
MLXRS_PRODUCTS(nvfp4_bf16, mlxrs::cuda::bf16, Floats<bf16, 4, 16>)
