// Attention for keys of up to 576 elements and values of up to 512 elements (see stored.cuh): the latent attention of
// DeepSeek, and the global layers of Gemma 4.
#include "stored.cuh"

MLXRS_STORED(wide, bf16, 576, 512, 8, Plain<bf16>)
MLXRS_STORED(wide, f16, 576, 512, 8, Plain<f16>)
MLXRS_JOIN(bf16, 512)
MLXRS_JOIN(f16, 512)
