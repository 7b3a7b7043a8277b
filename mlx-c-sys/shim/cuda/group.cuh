// Hopper's asynchronous operations: barriers in shared memory, bulk copies to it, and products of warp groups. Only sm_90a
// has all of them, so no other architecture has these functions.
#pragma once

#include <cuda.h>

#include "cuda/device.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
namespace mlxrs::cuda {

// A place in shared memory as the instructions expect it.
__device__ inline uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// A barrier of 8 bytes in shared memory. A phase ends after `count` arrivals and all expected bytes; phases alternate
// between parities 0 and 1.
__device__ inline void start_barrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Makes barriers that were started visible to copies. The block must synchronise after it.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared::cta.b64 state, [%0];\n\t}" ::"r"(barrier) : "memory");
}
// Arrives, and expects copies of that many bytes in this phase.
__device__ inline void arrive_and_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits for the end of the current phase of this parity.
__device__ inline void wait_for(uint32_t barrier, int parity) {
  asm volatile(
      "{\n\t.reg .pred ended;\n\twaiting:\n\tmbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n\t@!ended bra "
      "waiting;\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies `bytes` adjacent bytes to shared memory, both at multiples of 16. The barrier counts them.
__device__ inline void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}
// Copies the tile of a matrix that begins at (row, column). Elements outside of the matrix are zeros.
__device__ inline void copy_tile(uint32_t to, const CUtensorMap& matrix, int row, int column, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&matrix), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// An operand b [16, n] of multiply_group in shared memory, as its columns [n, 16] in pieces of 8 rows of 16 bytes. The
// distances are in bytes: from elements 0 to 7 of columns to elements 8 to 15, and from 8 columns to the next 8.
__device__ inline uint64_t operand(uint32_t at, int between_halves, int between_eights) {
  return (at & 0x3ffff) >> 4 | static_cast<uint64_t>(between_halves >> 4) << 16 | static_cast<uint64_t>(between_eights >> 4) << 32;
}

// c += a b for a [64, 16] in the registers of a warp group and b [16, n] in shared memory, with c in F32. Warp i of the
// group has rows 16 i to 16 i + 15 of a and c, as in `multiply`; c[j] has columns 8 j to 8 j + 7. On an H100 the bits of c
// are those of `multiply`. Between begin_products and finish_products no register of a or c may be used.
template <class T>
__device__ void multiply_group(float (&c)[4][4], const uint32_t (&a)[4], uint64_t b);
template <class T>
__device__ void multiply_group(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b);
template <class T>
__device__ void multiply_group(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b);

__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void submit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ inline void finish_products() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define MLXRS_FOUR(J) "+f"(c[J][0]), "+f"(c[J][1]), "+f"(c[J][2]), "+f"(c[J][3])
#define MLXRS_GROUPS(T, NAME) \
  template <> \
  __device__ inline void multiply_group<T>(float (&c)[4][4], const uint32_t (&a)[4], uint64_t b) { \
    asm volatile( \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." NAME "." NAME " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
      "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;" \
        : MLXRS_FOUR(0), MLXRS_FOUR(1), MLXRS_FOUR(2), MLXRS_FOUR(3) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  } \
  template <> \
  __device__ inline void multiply_group<T>(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b) { \
    asm volatile( \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;" \
        : MLXRS_FOUR(0), MLXRS_FOUR(1), MLXRS_FOUR(2), MLXRS_FOUR(3), \
          MLXRS_FOUR(4), MLXRS_FOUR(5), MLXRS_FOUR(6), MLXRS_FOUR(7) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  } \
  template <> \
  __device__ inline void multiply_group<T>(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b) { \
    asm volatile( \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
      "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;" \
        : MLXRS_FOUR(0), MLXRS_FOUR(1), MLXRS_FOUR(2), MLXRS_FOUR(3), \
          MLXRS_FOUR(4), MLXRS_FOUR(5), MLXRS_FOUR(6), MLXRS_FOUR(7), \
          MLXRS_FOUR(8), MLXRS_FOUR(9), MLXRS_FOUR(10), MLXRS_FOUR(11), \
          MLXRS_FOUR(12), MLXRS_FOUR(13), MLXRS_FOUR(14), MLXRS_FOUR(15) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  }
MLXRS_GROUPS(bf16, "bf16")
MLXRS_GROUPS(f16, "f16")
#undef MLXRS_GROUPS
#undef MLXRS_FOUR

} // namespace mlxrs::cuda
#endif
