// Settings that are made before MLX starts.
//
// TF32: by default MLX multiplies f32 on tensor cores with 10 bits of mantissa, which changes the fourth digit of every
// product and thereby the tokens. Here TF32 is off by default. MLX_ENABLE_TF32=1 turns it on.
//
// malloc: MLX allocates results with malloc and frees them soon after. glibc returns free memory at the end of its heap
// to the system, and the next step faults these pages in again, one by one. That took 5 % of a prompt of 24 tokens and
// 2 % of a decode step of 32 rows. Here glibc keeps up to 64 MiB, unless the environment sets glibc's thresholds.
#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace {

struct Defaults {
  Defaults() {
    // MLX reads the variable at its first product, after the libraries are loaded.
    setenv("MLX_ENABLE_TF32", "0", /* overwrite = */ 0);
#ifdef __GLIBC__
    if (!std::getenv("MALLOC_TRIM_THRESHOLD_") && !std::getenv("MALLOC_MMAP_THRESHOLD_") && !std::getenv("GLIBC_TUNABLES")) {
      // In glibc, setting one of the two thresholds alone fixes the other one at 128 KiB.
      mallopt(M_MMAP_THRESHOLD, 32 << 20);
      mallopt(M_TRIM_THRESHOLD, 64 << 20);
    }
#endif
  }
};
const Defaults defaults;

} // namespace
