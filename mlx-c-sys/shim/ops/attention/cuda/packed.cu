// Attention with packed keys and values (see stored.cuh).
#include "stored.cuh"

#define MLXRS_PACKED(T, D)                          \
  MLXRS_STORED(packed4, T, D, D, 4, Packed<T, 4>)   \
  MLXRS_STORED(packed8, T, D, D, 4, Packed<T, 8>)   \
  MLXRS_JOIN(T, D)
MLXRS_PACKED(bf16, 64)
MLXRS_PACKED(bf16, 128)
MLXRS_PACKED(bf16, 256)
MLXRS_PACKED(f16, 64)
MLXRS_PACKED(f16, 128)
MLXRS_PACKED(f16, 256)
