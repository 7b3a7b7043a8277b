// What is set before MLX begins.
//
// MLX multiplies f32 on tensor cores in 10 bits (TF32) unless it is told not to, which moves the fourth digit of every
// product and with it tokens. Who wants that asks for it: MLX_ENABLE_TF32=1.
//
// MLX takes the memory of results from malloc and gives it back a moment later. glibc returns what is free at the end of
// its heap to the system, so that the next step's pages come anew, page by page: a twentieth of a prompt of 24 tokens,
// and a fiftieth of a step of 32 rows. So up to 64 MiB stay with the process, unless its environment says what should.
#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace {

struct Defaults {
  Defaults() {
    // MLX reads it at its first product, which comes after the libraries are loaded.
    setenv("MLX_ENABLE_TF32", "0", /* overwrite = */ 0);
#ifdef __GLIBC__
    if (!std::getenv("MALLOC_TRIM_THRESHOLD_") && !std::getenv("MALLOC_MMAP_THRESHOLD_") && !std::getenv("GLIBC_TUNABLES")) {
      // The one alone would fix the other at 128 KiB.
      mallopt(M_MMAP_THRESHOLD, 32 << 20);
      mallopt(M_TRIM_THRESHOLD, 64 << 20);
    }
#endif
  }
};
const Defaults defaults;

} // namespace
