// Products with few rows of x, for bf16 and the most used codings: dense, 4 and 8 bits.
#include "product.cuh"

MLXRS_PRODUCTS(affine4_bf16, mlxrs::cuda::bf16, Affine<bf16, 4>)
MLXRS_PRODUCTS(affine8_bf16, mlxrs::cuda::bf16, Affine<bf16, 8>)
MLXRS_PRODUCTS(dense_bf16, mlxrs::cuda::bf16, DenseCodes<bf16>)
