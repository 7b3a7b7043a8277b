#include "mlxrs.h"

const char* mlxrs_inputs(void) {
  return MLXRS_INPUTS;
}
