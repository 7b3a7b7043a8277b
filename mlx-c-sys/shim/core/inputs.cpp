// The digest of this library's sources (see mlxrs.h).
#include "mlxrs.h"

const char* mlxrs_inputs(void) {
  return MLXRS_INPUTS;
}
