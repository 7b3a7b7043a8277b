// Checks the settings of the environment at the start.
#include "settings.h"

#include "guard.h"
#include "runtime/isa.h"
#include "runtime/threads.h"

extern "C" int mlxrs_check_settings(void) {
  return mlxrs::guarded([] {
    mlxrs::kernels_wanted();
    mlxrs::isa();
    mlxrs::wanted_threads();
  });
}
