// Sums of small arrays over the GPUs of a machine. Each block writes its part of x to the memory of all other ranks,
// announces it, waits for theirs, and adds all of them in the order of the ranks. A block waits only for the blocks of its
// number.
#include "args.h"
#include "cuda/device.cuh"

namespace mlxrs::cuda {

__device__ inline void announce(uint32_t* to, uint32_t number) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(number) : "memory");
}
__device__ inline uint32_t announced(const uint32_t* from) {
  uint32_t number;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(number) : "l"(from) : "memory");
  return number;
}

template <class T>
__device__ void add_up(float* sum, uint4 v) {
  const T* each = reinterpret_cast<const T*>(&v);
#pragma unroll
  for (int e = 0; e < 16 / static_cast<int>(sizeof(T)); e++) {
    sum[e] += wide(each[e]);
  }
}

template <class T>
__device__ void sum_of_peers(const PeersArgs& a) {
  constexpr int n = 16 / static_cast<int>(sizeof(T));
  wait_for_previous();
  __shared__ uint32_t shared_round;
  int block = blockIdx.x;
  auto memory_of = [&](int rank) { return reinterpret_cast<PeersMemory*>(a.memory[rank]); };
  auto* own = memory_of(a.rank);
  if (threadIdx.x == 0) {
    shared_round = ++own->calls[block].number;
  }
  __syncthreads();
  uint32_t round = shared_round;
  int parity = round & 1;
  int64_t first = static_cast<int64_t>(block) * a.per_block;
  int count = static_cast<int>(min(static_cast<int64_t>(a.per_block), a.bytes - first)) / 16;
  auto* x = reinterpret_cast<const uint4*>(static_cast<const char*>(a.x) + first);
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    uint4 v = x[i];
    for (int other = 1; other < a.size; other++) {
      int to = (a.rank + other) % a.size;
      reinterpret_cast<uint4*>(memory_of(to)->data[parity][a.rank][block])[i] = v;
    }
  }
  __threadfence_system();
  __syncthreads();
  int other = threadIdx.x;
  if (other < a.size && other != a.rank) {
    announce(&memory_of(other)->announced[block][a.rank].number, round);
    // The other rank may be one call ahead.
    while (static_cast<int32_t>(announced(&own->announced[block][other].number) - round) < 0) {
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    float sum[n] = {};
    for (int rank = 0; rank < a.size; rank++) {
      auto* of_rank = reinterpret_cast<const uint4*>(own->data[parity][rank][block]);
      add_up<T>(sum, rank == a.rank ? x[i] : __ldcg(of_rank + i));
    }
    uint4 y;
    T* each = reinterpret_cast<T*>(&y);
#pragma unroll
    for (int e = 0; e < n; e++) {
      each[e] = narrow<T>(sum[e]);
    }
    reinterpret_cast<uint4*>(static_cast<char*>(a.y) + first)[i] = y;
  }
}

} // namespace mlxrs::cuda

extern "C" __global__ void peers_bf16(const __grid_constant__ mlxrs::cuda::PeersArgs a) {
  mlxrs::cuda::sum_of_peers<mlxrs::cuda::bf16>(a);
}
extern "C" __global__ void peers_f16(const __grid_constant__ mlxrs::cuda::PeersArgs a) {
  mlxrs::cuda::sum_of_peers<mlxrs::cuda::f16>(a);
}
extern "C" __global__ void peers_f32(const __grid_constant__ mlxrs::cuda::PeersArgs a) {
  mlxrs::cuda::sum_of_peers<float>(a);
}
