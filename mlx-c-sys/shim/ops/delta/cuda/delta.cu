// Linear attention over rows of equal length.
#include "delta.cuh"

#define MLXRS_DELTAS(T, EIGHTS)                   \
  MLXRS_DELTA(delta, T, delta, EIGHTS, false)       \
  MLXRS_DELTA(channels, T, channels, EIGHTS, false) \
  MLXRS_DELTA(scan, T, scan, EIGHTS, false)
MLXRS_DELTAS(bf16, 1)
MLXRS_DELTAS(bf16, 2)
MLXRS_DELTAS(bf16, 4)
MLXRS_DELTAS(f16, 1)
MLXRS_DELTAS(f16, 2)
MLXRS_DELTAS(f16, 4)
