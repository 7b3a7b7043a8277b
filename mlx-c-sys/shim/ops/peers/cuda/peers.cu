// Sums and gathers of small messages between the GPUs of one machine. Each rank writes its message to the memory of every
// other rank, over NVLink or PCIe, and reads theirs from its own memory as they arrive.
//
// A unit is stored with the number of the exchange beside each 4 bytes, so that a reader needs no other signal: stores of 8
// bytes are seen whole. It is cleared when it has been read.
// Memory: two parts that exchanges use in turns. A rank begins exchange n + 2 when it has the messages of exchange n + 1 from
// all ranks, which have ended exchange n by then.
// Order: sums are added in F32 in the order of the ranks, so they have the same bits on all ranks.
// Grid: a thread exchanges every `gridDim.x * peer_threads`th unit. All blocks must run at the same time.
// Bound: the latency of a store to a peer, some 2 us on an H100; with more than 128 KiB the link's bandwidth, half of which
// the numbers take.
#include "cuda/args.h"
#include "cuda/device.cuh"
#include "ops/peers/cuda/peers.h"

namespace mlxrs::cuda {

// The number of the exchange after `last`. It is never 0, which is that of cleared memory, and even and odd numbers take turns.
__device__ inline uint32_t number_after(uint32_t last) {
  return last == UINT32_MAX ? 2 : last + 1;
}

__device__ inline void store_unit(uint4* to, uint2 v, uint32_t number) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(v.x), "r"(number), "r"(v.y) : "memory");
}
// Waits for a unit of a peer, and clears it.
__device__ inline uint2 take_unit(uint4* from, uint32_t number) {
  uint4 v;
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
  } while (v.y != number || v.w != number);
  store_unit(from, {0, 0}, 0);
  return {v.x, v.z};
}

// A unit of an array that begins at any address.
__device__ inline uint2 load_unit(const void* x, int64_t i) {
  auto* at = static_cast<const char*>(x) + 8 * i;
  uint2 v{};
  if (reinterpret_cast<uintptr_t>(at) % 8 == 0) {
    return *reinterpret_cast<const uint2*>(at);
  }
  for (int b = 0; b < 8; b++) {
    reinterpret_cast<char*>(&v)[b] = at[b];
  }
  return v;
}
__device__ inline void write_unit(void* y, int64_t i, uint2 v) {
  auto* at = static_cast<char*>(y) + 8 * i;
  if (reinterpret_cast<uintptr_t>(at) % 8 == 0) {
    *reinterpret_cast<uint2*>(at) = v;
    return;
  }
  for (int b = 0; b < 8; b++) {
    at[b] = reinterpret_cast<const char*>(&v)[b];
  }
}

// Gathers the units of the ranks: y is [ranks, units].
struct Gather {
  static __device__ void run(const PeerArgs& a, int64_t i, const auto& unit_of) {
    for (int rank = 0; rank < a.ranks; rank++) {
      write_unit(a.y, rank * a.units + i, unit_of(rank));
    }
  }
};
// Adds them, as elements of T.
template <class T>
struct Sum {
  static constexpr int elements = 8 / sizeof(T);

  static __device__ void run(const PeerArgs& a, int64_t i, const auto& unit_of) {
    float sum[elements] = {};
    for (int rank = 0; rank < a.ranks; rank++) {
      uint2 v = unit_of(rank);
      auto* of = reinterpret_cast<const T*>(&v);
#pragma unroll
      for (int e = 0; e < elements; e++) {
        sum[e] = rank == 0 ? wide(of[e]) : sum[e] + wide(of[e]);
      }
    }
    uint2 v;
#pragma unroll
    for (int e = 0; e < elements; e++) {
      reinterpret_cast<T*>(&v)[e] = narrow<T>(sum[e]);
    }
    write_unit(a.y, i, v);
  }
};

template <class Result>
__device__ void exchange(const PeerArgs& a) {
  wait_for_previous();
  uint32_t number = number_after(__ldcg(a.clock));
  int64_t first = static_cast<int64_t>(blockIdx.x) * peer_threads + threadIdx.x, step = gridDim.x * peer_threads;
  auto place = [&](int of, int from) { return static_cast<uint4*>(a.memory[of]) + (number % 2 * a.ranks + from) * a.capacity; };
  for (int64_t i = first; i < a.units; i += step) {
    uint2 v = load_unit(a.x, i);
    for (int k = 1; k < a.ranks; k++) {
      int to = (a.rank + k) % a.ranks;
      store_unit(place(to, a.rank) + i, v, number);
    }
  }
  for (int64_t i = first; i < a.units; i += step) {
    Result::run(a, i, [&](int rank) { return rank == a.rank ? load_unit(a.x, i) : take_unit(place(a.rank, rank) + i, number); });
  }
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(a.clock + 1, 1) == gridDim.x - 1) {
    a.clock[0] = number, a.clock[1] = 0;
  }
}

} // namespace mlxrs::cuda

#define MLXRS_PEERS(NAME, RESULT)                                                                              \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::peer_threads) NAME(const __grid_constant__ mlxrs::cuda::PeerArgs a) { \
    mlxrs::cuda::exchange<mlxrs::cuda::RESULT>(a);                                                             \
  }
MLXRS_PEERS(gather, Gather)
MLXRS_PEERS(sum_bf16, Sum<mlxrs::cuda::bf16>)
MLXRS_PEERS(sum_f16, Sum<mlxrs::cuda::f16>)
MLXRS_PEERS(sum_f32, Sum<float>)
