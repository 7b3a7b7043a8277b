// Draws the next token of each row of logits [rows, n], as ops/sample/draw.cpp does, and computes argmax and logsumexp
// of rows. Top-k and top-p find their thresholds by a radix search, three bits of the threshold in each pass over the row.
//
// Grid: blockIdx.x is the row. Each row has gridDim.y blocks of 1,024 threads, which divide its ids. They are a cluster, and
// exchange sums and best elements through shared memory; all of them know all results. Sums of doubles have the order of the
// blocks. Bound: for one row by the latency of barriers, for many rows by the passes over the row.
#include "cuda/args.h"
#include "cuda/cluster.cuh"
#include "cuda/device.cuh"

namespace mlxrs::cuda {

constexpr int draw_threads = 1024, draw_warps = draw_threads / warp_size;
static_assert(draw_warps == warp_size);
constexpr uint32_t no_token = ~0u;

// Maps floats to unsigned integers with the same order.
__device__ inline uint32_t rank_of(float x) {
  uint32_t bits = __float_as_uint(x);
  return bits ^ (bits >> 31 != 0 ? ~0u : 0x80000000u);
}
__device__ inline float of_rank(uint32_t rank) {
  return __uint_as_float(rank ^ (rank >> 31 != 0 ? 0x80000000u : ~0u));
}

struct Drawn {
  float y;
  uint32_t id;
};
__device__ inline Drawn better(Drawn a, Drawn b) {
  return b.y > a.y || (b.y == a.y && b.id < a.id) ? b : a;
}

// The exchange of a few values of eight bytes between the blocks of a row. It alternates between two buffers, so that one
// barrier for each exchange is enough: a block that writes a buffer again has passed the barrier after its last reads.
template <class V>
class Exchange {
  static_assert(sizeof(V) == sizeof(uint64_t));

 public:
  static constexpr int most = 7;

  // The place for the block's own values.
  __device__ static V* own(bool second) {
    return reinterpret_cast<V*>(memory().own[second]);
  }
  // Waits until all blocks have written `count` own values. Value i of block b is then in [b * count + i].
  __device__ static const V* all(bool second, int count) {
    auto& m = memory();
    __syncthreads();
    if (gridDim.y == 1) {
      return own(second);
    }
    wait_for_cluster();
    int block = threadIdx.x / count;
    if (block < gridDim.y) {
      m.all[second][threadIdx.x] = of_block(&m.own[second][threadIdx.x - block * count], block);
    }
    __syncthreads();
    return reinterpret_cast<const V*>(m.all[second]);
  }

 private:
  struct Memory {
    uint64_t own[2][most], all[2][most * cluster_blocks];
  };
  __device__ static Memory& memory() {
    __shared__ Memory memory;
    return memory;
  }
};

struct Share {
  int first, end;
};

// The threads and blocks of a row together.
class Group {
 public:
  // The block's share of `n` elements. It begins at a multiple of 8.
  __device__ static Share share(int n) {
    int own = (n + 8 * gridDim.y - 1) / (8 * gridDim.y) * 8, first = min(own * static_cast<int>(blockIdx.y), n);
    return {first, min(first + own, n)};
  }

  __device__ Drawn best(Drawn own) {
    own = best_of_warp(own);
    __shared__ Drawn parts[draw_warps];
    __syncthreads();
    if (threadIdx.x % warp_size == 0) {
      parts[threadIdx.x / warp_size] = own;
    }
    __syncthreads();
    own = best_of_warp(parts[threadIdx.x % warp_size]);
    if (threadIdx.x == 0) {
      *Exchange<Drawn>::own(second_) = own;
    }
    const Drawn* all = Exchange<Drawn>::all(second_, 1);
    second_ = !second_;
    own = all[0];
    for (int block = 1; block < gridDim.y; block++) {
      own = better(own, all[block]);
    }
    return own;
  }

  // Lane i of each warp gets the sum of own[i] over all threads of the row.
  template <int Count>
  __device__ double sums(const double (&own)[Count]) {
    __shared__ double parts[Count][draw_warps];
    int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Count; i++) {
      double sum = warp_sum(own[i]);
      if (lane == 0) {
        parts[i][warp] = sum;
      }
    }
    __syncthreads();
    if (warp < Count) {
      double sum = warp_sum(parts[warp][lane]);
      if (lane == 0) {
        Exchange<double>::own(second_)[warp] = sum;
      }
    }
    const double* all = Exchange<double>::all(second_, Count);
    second_ = !second_;
    double sum = 0;
    for (int block = 0; block < gridDim.y; block++) {
      sum += all[block * Count + min(lane, Count - 1)];
    }
    return sum;
  }
  // All threads get the sum of `own`.
  __device__ double sum(double own) {
    double one[1] = {own};
    return sums(one);
  }

  // Whether `own` is true in any thread of the row.
  __device__ bool any(bool own) {
    bool any = __syncthreads_or(own) != 0;
    return gridDim.y == 1 ? any : sum(any && threadIdx.x == 0 ? 1.0 : 0.0) > 0;
  }

  // No block may end while others read its shared memory.
  __device__ void end() {
    if (gridDim.y > 1) {
      wait_for_cluster();
    }
  }

 private:
  __device__ static Drawn best_of_warp(Drawn own) {
#pragma unroll
    for (int step = warp_size / 2; step > 0; step /= 2) {
      own = better(own, {__shfl_xor_sync(~0u, own.y, step), __shfl_xor_sync(~0u, own.id, step)});
    }
    return own;
  }
  bool second_ = false;
};

// Calls body(index, value) for the thread's elements of a row, with 16-byte loads if the row is aligned, `unroll` at a time.
template <int unroll = 4, class T, class Body>
__device__ inline void each_of_row(const T* x, int n, const Body& body) {
  constexpr int of_load = 16 / sizeof(T);
  auto [first, end] = Group::share(n);
  bool whole = n % of_load == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
  if (!whole) {
    for (int i = first + threadIdx.x; i < end; i += draw_threads) {
      body(i, wide(x[i]));
    }
    return;
  }
#pragma unroll unroll
  for (int i = first / of_load + threadIdx.x; i < end / of_load; i += draw_threads) {
    uint4 v = reinterpret_cast<const uint4*>(x)[i];
#pragma unroll
    for (int j = 0; j < of_load; j++) {
      body(i * of_load + j, wide(reinterpret_cast<const T*>(&v)[j]));
    }
  }
}

// The bits of a float's significand that T does not have. In ranks of T's numbers they are zeros from 2^31 on and ones below.
template <class T>
constexpr int spare_bits = 0;
template <>
constexpr int spare_bits<bf16> = 16;
template <>
constexpr int spare_bits<f16> = 13;

// The largest 32-bit number t for which the sum of weight(x[i]) over all i with rank(i, x[i]) >= t reaches `wanted`. Each
// pass over the row finds three bits of t. The `spare` lowest bits of ranks are those of spare_bits, and are not searched.
template <int spare, class T, class Rank, class Weight>
__device__ uint32_t threshold(Group& group, const T* x, int n, double wanted, const Rank& rank, const Weight& weight) {
  uint32_t found = 0;
  for (int shift = 30; shift > spare - 3; shift -= 3) {
    int digits = shift == 30 ? 3 : 7;
    double own[7] = {};
    each_of_row<1>(x, n, [&](int i, float x) {
      uint32_t r = rank(i, x);
      double w = weight(x);
#pragma unroll
      for (int d = 0; d < 7; d++) {
        if (d < digits && r >= found + (static_cast<uint32_t>(d + 1) << shift)) {
          own[d] += w;
        }
      }
    });
    // Lane d has the sum for digit d + 1. Larger digits have smaller sums.
    double sum = group.sums(own);
    uint32_t reached = __ballot_sync(~0u, static_cast<int>(threadIdx.x % warp_size) < digits && sum >= wanted);
    found += static_cast<uint32_t>(warp_size - __clz(reached)) << shift;
  }
  return found >> 31 != 0 ? found : found | ((1u << spare) - 1);
}

// Threefry-2x32 with 20 rounds (Salmon et al. 2011).
__device__ inline uint2 threefry(uint32_t key0, uint32_t key1, uint32_t x, uint32_t y) {
  const int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[3] = {key0, key1, key0 ^ key1 ^ 0x1bd11bdau};
  x += keys[0];
  y += keys[1];
#pragma unroll
  for (int i = 0; i < 5; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      x += y;
      y = __funnelshift_l(y, y, turns[i % 2][j]) ^ x;
    }
    x += keys[(i + 1) % 3];
    y += keys[(i + 2) % 3] + static_cast<uint32_t>(i + 1);
  }
  return {x, y};
}

template <class T>
__device__ void draw(const DrawArgs& a) {
  wait_for_previous();
  int row = blockIdx.x, n = a.n;
  const T* logits = static_cast<const T*>(a.x) + static_cast<int64_t>(row) * n;
  auto at = [&](int i) { return wide(logits[i]); };
  float scale = a.numbers[3 * row], p = a.numbers[3 * row + 1], reach = a.numbers[3 * row + 2];
  int count = a.counts[row];
  uint32_t key0 = a.keys[2 * row], key1 = a.keys[2 * row + 1];

  Group group;
  Drawn largest{-INFINITY, no_token};
  bool strange = false;
  each_of_row(logits, n, [&](int i, float x) {
    strange |= x != x;
    largest = better(largest, {x, static_cast<uint32_t>(i)});
  });
  largest = group.best(largest);
  bool is_writer = threadIdx.x == 0 && blockIdx.y == 0;
  bool is_number = largest.y > -INFINITY && largest.y < INFINITY && !(scale != 0.0f && group.any(strange));
  if (!is_number || scale == 0.0f || count == 1) {
    if (is_writer) {
      a.y[row] = is_number ? largest.id : no_token;
      a.ids[row] = is_number ? largest.id : 0;
    }
    return group.end();
  }

  // Logits below `least` do not take part, nor logits equal to it with ids after `last`.
  float least = largest.y + reach;
  uint32_t last = n;
  auto rank = [](int, float x) { return rank_of(x); };
  if (count < n) {
    uint32_t found = threshold<spare_bits<T>>(group, logits, n, count, rank, [](float) { return 1.0; });
    double above = 0, equal = 0;
    each_of_row(logits, n, [&](int, float x) {
      above += rank_of(x) > found;
      equal += rank_of(x) == found;
    });
    above = group.sum(above);
    equal = group.sum(equal);
    if (of_rank(found) >= least) {
      least = of_rank(found);
      if (above + equal > count) {
        // Equal logits take part in the order of their ids: the search runs on descending ids.
        auto place = [&](int i, float x) { return rank_of(x) == found ? ~0u - static_cast<uint32_t>(i) : 0u; };
        auto is_equal = [&](float x) { return rank_of(x) == found ? 1.0 : 0.0; };
        last = ~0u - threshold<0>(group, logits, n, count - above, place, is_equal);
      }
    }
  }
  if (p < 1.0f) {
    auto weight = [&](float x) { return static_cast<double>(__expf(x - largest.y)); };
    double total = 0;
    each_of_row(logits, n, [&](int, float x) { total += weight(x); });
    total = group.sum(total);
    float kept = of_rank(threshold<spare_bits<T>>(group, logits, n, total * p, rank, weight));
    if (kept > least) {
      least = kept;
      last = n;
    }
  }

  int half = n / 2, second = n - half;
  Drawn best{-INFINITY, largest.id};
  auto compete = [&](int id, uint32_t bits) {
    float x = at(id);
    if (!(x > least || (x == least && static_cast<uint32_t>(id) <= last))) {
      return;
    }
    float u = (static_cast<float>(bits) + 0.5f) * 0x1p-32f;
    float exponential = u < 0x1p-8f ? (u * 0.5f + 1.0f) * u : -logf(fmaxf(1.0f - u, 0x1p-24f));
    best = better(best, {x * scale - logf(exponential), static_cast<uint32_t>(id)});
  };
  auto pairs = Group::share(second);
  for (int i = pairs.first + threadIdx.x; i < pairs.end; i += draw_threads) {
    // The middle id of an odd n has a counter of its own, whose second half is unused.
    bool is_pair = i < half;
    if (at(i) < least && !(is_pair && at(second + i) >= least)) {
      continue;
    }
    uint2 bits = threefry(key0, key1, static_cast<uint32_t>(i), is_pair ? static_cast<uint32_t>(second + i) : 0u);
    compete(i, bits.x);
    if (is_pair) {
      compete(second + i, bits.y);
    }
  }
  best = group.best(best);
  if (is_writer) {
    a.y[row] = a.ids[row] = best.id;
  }
  group.end();
}

// log(sum(e^x)) of each row, or the index of its largest element.
template <class T>
__device__ void logsumexp(const DrawArgs& a) {
  wait_for_previous();
  const T* x = static_cast<const T*>(a.x) + static_cast<int64_t>(blockIdx.x) * a.n;
  Group group;
  bool is_writer = threadIdx.x == 0 && blockIdx.y == 0;
  Drawn largest{-INFINITY, no_token};
  each_of_row(x, a.n, [&](int i, float x) { largest = better(largest, {x, static_cast<uint32_t>(i)}); });
  largest = group.best(largest);
  if (a.counts == nullptr) {
    if (is_writer) {
      a.y[blockIdx.x] = largest.id == no_token ? 0 : largest.id;
    }
    return group.end();
  }
  float most = largest.y > -INFINITY ? largest.y : 0.0f;
  double sum = 0;
  each_of_row(x, a.n, [&](int, float x) { sum += static_cast<double>(expf(x - most)); });
  sum = group.sum(sum);
  if (is_writer) {
    reinterpret_cast<float*>(a.y)[blockIdx.x] = most + logf(static_cast<float>(sum));
  }
  group.end();
}

} // namespace mlxrs::cuda

#define MLXRS_DRAW(NAME, T)                                                                                         \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::draw_threads)                                          \
      draw_##NAME(const __grid_constant__ mlxrs::cuda::DrawArgs a) {                                                \
    mlxrs::cuda::draw<T>(a);                                                                                        \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::draw_threads)                                          \
      logsumexp_##NAME(const __grid_constant__ mlxrs::cuda::DrawArgs a) {                                           \
    mlxrs::cuda::logsumexp<T>(a);                                                                                   \
  }
MLXRS_DRAW(f32, float)
MLXRS_DRAW(bf16, mlxrs::cuda::bf16)
MLXRS_DRAW(f16, mlxrs::cuda::f16)
