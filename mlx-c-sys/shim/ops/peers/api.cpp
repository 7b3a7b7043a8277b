// The C interface of exchanges over the memory of peers.
#include "mlxrs_peers.h"

#include <stdexcept>

#include "core/guard.h"
#include "core/settings.h"
#include "mlx/c/private/distributed_group.h"

#ifdef MLXRS_CUDA
#include "cuda/group.h"
#endif

namespace {

[[noreturn]] [[maybe_unused]] void unsupported() {
  throw std::runtime_error("exchanges over the memory of peers need CUDA");
}

} // namespace

extern "C" int mlxrs_peers_offer(mlx_distributed_group group, uint8_t* handle) {
  return mlxrs::guarded([=] {
    if (!mlxrs::is_on("MLX_CUDA_PEERS")) {
      throw std::runtime_error("MLX_CUDA_PEERS=off");
    }
#ifdef MLXRS_CUDA
    mlxrs::cuda::offer_to_peers(mlx_distributed_group_get_(group).size(), handle);
#else
    unsupported();
#endif
  });
}

extern "C" int mlxrs_peers_map(mlx_distributed_group group, const uint8_t* handles) {
  return mlxrs::guarded([=] {
#ifdef MLXRS_CUDA
    auto& of = mlx_distributed_group_get_(group);
    mlxrs::cuda::map_peers(of.rank(), of.size(), handles);
#else
    unsupported();
#endif
  });
}

extern "C" int mlxrs_peers_use(mlx_distributed_group* group) {
  return mlxrs::guarded([=] {
#ifdef MLXRS_CUDA
    auto& of = mlx_distributed_group_get_(*group);
    of = mlxrs::cuda::with_peers(of);
#else
    unsupported();
#endif
  });
}
