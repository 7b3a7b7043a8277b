// The C function of cross entropy.
#include "loss.h"
#include "ops/border.h"

using namespace mlxrs;

extern "C" int mlxrs_fast_cross_entropy(mlx_array* res, mlx_array logits, mlx_array targets, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    const auto &given = mlx_array_get_(logits), &t = mlx_array_get_(targets);
    // On GPUs MLX's kernels read 16-bit logits and compute in f32. The logits, the largest array of a training step, and
    // their gradient then stay in 16 bits.
    auto x = stream.device == mx::Device::cpu ? mx::astype(given, mx::float32, stream) : given;
    auto y = ops::run(
        MLXRS_OP_LOSS, stream, [&] { return ops::cross_entropy(x, t, stream); },
        [&] { return ops::cross_entropy_plainly(x, t, stream); });
    mlx_array_set_(*res, mx::astype(y, mx::float32, stream));
  });
}
