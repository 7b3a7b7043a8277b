// Clusters of blocks (Hopper and later): their barrier, and reads of the shared memory of other blocks. A block may end only
// when no other block reads its shared memory any more.
#pragma once

#include <stdint.h>

namespace mlxrs::cuda {

// Waits for all threads of the cluster, and makes what they wrote to shared memory visible.
__device__ inline void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// The first half of wait_for_cluster, for a block that ends.
__device__ inline void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// The address of this place in the shared memory of block `rank` of the cluster.
__device__ inline uint32_t address_in(const void* at, int rank) {
  uint32_t address = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(at))), "r"(rank));
#endif
  return address;
}
// Reads this place in the shared memory of block `rank` of the cluster.
__device__ inline float4 of_block(const float4* at, int rank) {
  float4 v{};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address_in(at, rank))
               : "memory");
#endif
  return v;
}
__device__ inline uint64_t of_block(const uint64_t* at, int rank) {
  uint64_t v{};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(v) : "r"(address_in(at, rank)) : "memory");
#endif
  return v;
}

} // namespace mlxrs::cuda
