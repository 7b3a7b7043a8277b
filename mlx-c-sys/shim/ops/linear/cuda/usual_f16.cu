// Products with few rows of x, for f16 and the most used codings: dense, 4 and 8 bits.
#include "product.cuh"

MLXRS_PRODUCTS(affine4_f16, mlxrs::cuda::f16, Affine<f16, 4>)
MLXRS_PRODUCTS(affine8_f16, mlxrs::cuda::f16, Affine<f16, 8>)
MLXRS_PRODUCTS(dense_f16, mlxrs::cuda::f16, DenseCodes<f16>)
