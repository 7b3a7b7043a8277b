// Linear attention over ragged rows, with states in slots.
#include "delta.cuh"

#define MLXRS_RAGGED_DELTAS(T, EIGHTS)                   \
  MLXRS_DELTA(ragged_delta, T, delta, EIGHTS, true)        \
  MLXRS_DELTA(ragged_channels, T, channels, EIGHTS, true)  \
  MLXRS_DELTA(ragged_scan, T, scan, EIGHTS, true)
MLXRS_RAGGED_DELTAS(bf16, 1)
MLXRS_RAGGED_DELTAS(bf16, 2)
MLXRS_RAGGED_DELTAS(bf16, 4)
MLXRS_RAGGED_DELTAS(f16, 1)
MLXRS_RAGGED_DELTAS(f16, 2)
MLXRS_RAGGED_DELTAS(f16, 4)
