// Draws the next token of each row of logits [rows, n], as ops/sample/draw.cpp does, and computes argmax and logsumexp
// of rows. One block of 1,024 threads for each row. Top-k and top-p find their thresholds by a radix search, three bits
// of the threshold in each pass over the row.
#include "cuda/args.h"
#include "cuda/device.cuh"

namespace mlxrs::cuda {

constexpr int draw_threads = 1024, draw_warps = draw_threads / warp_size;
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
__device__ inline Drawn best_of_block(Drawn own) {
  __shared__ Drawn parts[draw_warps];
#pragma unroll
  for (int step = warp_size / 2; step > 0; step /= 2) {
    own = better(own, {__shfl_xor_sync(~0u, own.y, step), __shfl_xor_sync(~0u, own.id, step)});
  }
  __syncthreads();
  if (threadIdx.x % warp_size == 0) {
    parts[threadIdx.x / warp_size] = own;
  }
  __syncthreads();
  own = parts[threadIdx.x % warp_size];
#pragma unroll
  for (int step = warp_size / 2; step > 0; step /= 2) {
    own = better(own, {__shfl_xor_sync(~0u, own.y, step), __shfl_xor_sync(~0u, own.id, step)});
  }
  return own;
}

__device__ inline double sum_of_block(double own) {
  __shared__ double parts[draw_warps];
#pragma unroll
  for (int step = warp_size / 2; step > 0; step /= 2) {
    own += __shfl_xor_sync(~0u, own, step);
  }
  __syncthreads();
  if (threadIdx.x % warp_size == 0) {
    parts[threadIdx.x / warp_size] = own;
  }
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < draw_warps; i++) {
    sum += parts[i];
  }
  return sum;
}

// Calls body(index, value) for the thread's elements of a row, with 16-byte loads if the row is aligned.
template <class T, class Body>
__device__ inline void each_of_row(const T* x, int n, const Body& body) {
  constexpr int of_load = 16 / sizeof(T);
  bool whole = n % of_load == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
  if (!whole) {
    for (int i = threadIdx.x; i < n; i += draw_threads) {
      body(i, wide(x[i]));
    }
    return;
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < n / of_load; i += draw_threads) {
    uint4 v = reinterpret_cast<const uint4*>(x)[i];
#pragma unroll
    for (int j = 0; j < of_load; j++) {
      body(i * of_load + j, wide(reinterpret_cast<const T*>(&v)[j]));
    }
  }
}

// The largest 32-bit number t for which the sum of weight(i) over all i with rank(i) >= t reaches `wanted`. Each pass
// over the row finds three bits of t.
template <class Rank, class Weight>
__device__ uint32_t threshold(int n, double wanted, const Rank& rank, const Weight& weight) {
  uint32_t found = 0;
  for (int shift = 30; shift >= 0; shift -= 3) {
    int digits = shift == 30 ? 3 : 7;
    double sums[7] = {};
    for (int i = threadIdx.x; i < n; i += draw_threads) {
      uint32_t r = rank(i);
      double w = weight(i);
#pragma unroll
      for (int d = 0; d < 7; d++) {
        if (d < digits && r >= found + (static_cast<uint32_t>(d + 1) << shift)) {
          sums[d] += w;
        }
      }
    }
    int digit = 0;
#pragma unroll
    for (int d = 0; d < 7; d++) {
      if (d < digits && sum_of_block(sums[d]) >= wanted) {
        digit = d + 1;
      }
    }
    found += static_cast<uint32_t>(digit) << shift;
  }
  return found;
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

  Drawn largest{-INFINITY, no_token};
  bool strange = false;
  each_of_row(logits, n, [&](int i, float x) {
    strange |= x != x;
    largest = better(largest, {x, static_cast<uint32_t>(i)});
  });
  largest = best_of_block(largest);
  strange = __syncthreads_or(strange) != 0;
  bool is_number = largest.y > -INFINITY && largest.y < INFINITY && !(scale != 0.0f && strange);
  if (!is_number || scale == 0.0f || count == 1) {
    if (threadIdx.x == 0) {
      a.y[row] = is_number ? largest.id : no_token;
      a.ids[row] = is_number ? largest.id : 0;
    }
    return;
  }

  // Logits below `least` do not take part, nor logits equal to it with ids after `last`.
  float least = largest.y + reach;
  uint32_t last = n;
  auto one = [](int) { return 1.0; };
  if (count < n) {
    auto rank = [&](int i) { return rank_of(at(i)); };
    uint32_t found = threshold(n, count, rank, one);
    double above = 0, equal = 0;
    for (int i = threadIdx.x; i < n; i += draw_threads) {
      above += rank(i) > found;
      equal += rank(i) == found;
    }
    above = sum_of_block(above);
    equal = sum_of_block(equal);
    if (of_rank(found) >= least) {
      least = of_rank(found);
      if (above + equal > count) {
        // Equal logits take part in the order of their ids: the search runs on descending ids.
        auto place = [&](int i) { return rank(i) == found ? ~0u - static_cast<uint32_t>(i) : 0u; };
        auto is_equal = [&](int i) { return rank(i) == found ? 1.0 : 0.0; };
        last = ~0u - threshold(n, count - above, place, is_equal);
      }
    }
  }
  if (p < 1.0f) {
    auto rank = [&](int i) { return rank_of(at(i)); };
    auto weight = [&](int i) { return static_cast<double>(__expf(at(i) - largest.y)); };
    double total = 0;
    for (int i = threadIdx.x; i < n; i += draw_threads) {
      total += weight(i);
    }
    total = sum_of_block(total);
    float kept = of_rank(threshold(n, total * p, rank, weight));
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
  for (int i = threadIdx.x; i < second; i += draw_threads) {
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
  best = best_of_block(best);
  if (threadIdx.x == 0) {
    a.y[row] = a.ids[row] = best.id;
  }
}

// log(sum(e^x)) of each row, or the index of its largest element.
template <class T>
__device__ void logsumexp(const DrawArgs& a) {
  wait_for_previous();
  const T* x = static_cast<const T*>(a.x) + static_cast<int64_t>(blockIdx.x) * a.n;
  Drawn largest{-INFINITY, 0};
  each_of_row(x, a.n, [&](int i, float x) { largest = better(largest, {x, static_cast<uint32_t>(i)}); });
  largest = best_of_block(largest);
  if (a.counts == nullptr) {
    if (threadIdx.x == 0) {
      a.y[blockIdx.x] = largest.id;
    }
    return;
  }
  float most = largest.y > -INFINITY ? largest.y : 0.0f;
  double sum = 0;
  each_of_row(x, a.n, [&](int, float x) { sum += static_cast<double>(expf(x - most)); });
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) {
    reinterpret_cast<float*>(a.y)[blockIdx.x] = most + logf(static_cast<float>(sum));
  }
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
