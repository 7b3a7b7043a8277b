// The C functions for computations that repeat (see cuda/replay.h).
#include "guard.h"
#include "mlx/transforms.h"

#ifdef MLXRS_CUDA
#include "cuda/replay.h"
#endif

struct mlxrs_replay_ {
#ifdef MLXRS_CUDA
  mlxrs::cuda::Replay replay;
#endif
};

extern "C" int mlxrs_replay_new(mlxrs_replay* res) {
  return mlxrs::guarded([&] { *res = new mlxrs_replay_; });
}

extern "C" int mlxrs_replay_free(mlxrs_replay replay) {
  return mlxrs::guarded([&] { delete replay; });
}

extern "C" int mlxrs_replay_eval(mlxrs_replay replay, const mlx_vector_array outputs) {
  return mlxrs::guarded([&] {
    const auto& arrays = mlx_vector_array_get_(outputs);
#ifdef MLXRS_CUDA
    replay->replay.eval(arrays);
#else
    static_cast<void>(replay);
    mlx::core::async_eval(arrays);
#endif
  });
}
