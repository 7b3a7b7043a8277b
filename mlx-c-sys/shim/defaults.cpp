// MLX multiplies f32 on tensor cores in 10 bits (TF32) unless it is told not to, which moves the fourth digit of every
// product and with it tokens. Who wants that asks for it: MLX_ENABLE_TF32=1.
#include <cstdlib>

namespace {

struct Defaults {
  Defaults() {
    // MLX reads it at its first product, which comes after the libraries are loaded.
    setenv("MLX_ENABLE_TF32", "0", /* overwrite = */ 0);
  }
};
const Defaults defaults;

} // namespace
