// Attention over a KV cache, for any number of queries.
//
// A block takes 16 queries that share a head of keys and values: the query heads of a group, of one token or several. Keys are divided into
// parts of 64 slots. Each part gives values, the largest score and the sum of its own, and parts are joined from the first to the last. A
// block either takes one part, and the last block of a row to end joins them, or goes through all parts itself: the arithmetic is the same.
// So the result of a query depends on its own keys alone, to the bit: not on other rows, on other queries, or on how many blocks there are.
#include "cuda/args.h"
#include "cuda/device.cuh"
#include "cuda/seen.h"

namespace mlxrs::cuda {

constexpr int attention_warps = 4, attention_threads = attention_warps * warp_size, tile_queries = 16, part_slots = 64;

constexpr float nothing = -INFINITY;

// e^(x - most), 0 for no score at all.
__device__ inline float weight_of(float x, float most) {
  return x == nothing ? 0.0f : __expf(x - most);
}
// The only place where two parts become one: compilers choose how to round sums of products that are written otherwise.
__device__ inline float joined(float x, float of_x, float y, float of_y) {
  return __fmaf_rn(x, of_x, __fmul_rn(y, of_y));
}

template <class T>
__device__ inline void copy_16_bytes(T* to, const T* from) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from));
}

template <class T>
__device__ inline void load_transposed(uint32_t (&b)[4], const T* at) {
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address));
}

// Heads of at most D elements, a multiple of 8.
template <class T, int D>
__device__ void attention(const AttentionArgs& a, int dim, int value_dim) {
  wait_for_previous();
  constexpr int blocks = D / 32, padded = D + 8, value_tiles = D / attention_warps / 8;
  __shared__ __align__(16) T values[part_slots * padded];
  __shared__ float scores[tile_queries][part_slots + 1];
  __shared__ __align__(16) T weights[tile_queries][part_slots + 8];
  __shared__ float part_most[tile_queries], part_sum[tile_queries];
  __shared__ bool is_last;

  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, g = lane / 4, t = lane % 4;
  int part = blockIdx.x % a.parts, tile = blockIdx.x / a.parts, kv_head = blockIdx.y, row = blockIdx.z;
  int group = a.heads / a.kv_heads, queries = a.tokens * group, first = tile * tile_queries;
  int offset = a.offsets != nullptr ? a.offsets[row * a.offset_step] : a.slots - a.tokens;
  Seen seen{a.mask, a.layout, a.window, offset, a.tokens, a.slots};

  // The parts of the keys that a query of this tile can see.
  int last_query = min(first + tile_queries, queries) - 1;
  Range range = seen.range(first / group, last_query / group);
  int begin = range.first / part_slots, end = max(begin + 1, (range.end + part_slots - 1) / part_slots), count = end - begin;
  if (a.parts > 1) {
    if (part < begin || part >= end) {
      return;
    }
    begin = part, end = part + 1;
  }

  // Queries, each as the tensor cores take it: thread t has elements 8 t to 8 t + 7 of each 32.
  uint32_t q[blocks][2][4];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int query = first + g + 8 * h, token = query / group, head = kv_head * group + query % group;
    const T* from = static_cast<const T*>(a.q.at) + row * a.q.row + head * a.q.head + token * a.q.token;
#pragma unroll
    for (int b = 0; b < blocks; b++) {
      uint4 v = {};
      if (query < queries && 32 * b + 8 * t < dim) {
        v = *reinterpret_cast<const uint4*>(from + 32 * b + 8 * t);
      }
      q[b][h][0] = v.x, q[b][h][1] = v.y, q[b][h][2] = v.z, q[b][h][3] = v.w;
    }
  }

  const T* keys = static_cast<const T*>(a.k.at) + row * a.k.row + kv_head * a.k.head;
  const T* all_values = static_cast<const T*>(a.v.at) + row * a.v.row + kv_head * a.v.head;
  float y[value_tiles][4] = {}, most[2] = {nothing, nothing}, sum[2] = {0, 0};

  for (int c = begin; c < end; c++) {
    int slot = c * part_slots;
    __syncthreads();
    for (int i = threadIdx.x; i < part_slots * (D / 8); i += attention_threads) {
      int j = i / (D / 8), d = i % (D / 8) * 8;
      T* to = values + j * padded + d;
      // Slots that no query sees may hold NaN, and 0 times NaN is NaN: they count as zeros.
      if (slot + j >= range.first && slot + j < range.end && d < value_dim) {
        copy_16_bytes(to, all_values + (slot + j) * a.v.token + d);
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      }
    }
    asm volatile("cp.async.commit_group;");

    // Scores: a warp has 16 slots.
#pragma unroll
    for (int n = 0; n < 2; n++) {
      int own = warp * 16 + n * 8, j = slot + own + g;
      const T* from = keys + j * a.k.token;
      float s[4] = {};
#pragma unroll
      for (int b = 0; b < blocks; b++) {
        uint4 v = {};
        if (j < a.slots && 32 * b + 8 * t < dim) {
          v = *reinterpret_cast<const uint4*>(from + 32 * b + 8 * t);
        }
        multiply<T>(s, {q[b][0][0], q[b][1][0], q[b][0][1], q[b][1][1]}, v.x, v.y);
        multiply<T>(s, {q[b][0][2], q[b][1][2], q[b][0][3], q[b][1][3]}, v.z, v.w);
      }
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int query = first + g + (e / 2) * 8, at = own + 2 * t + e % 2;
        float score = s[e] * a.scale;
        if (a.cap > 0) {
          score = a.cap * tanhf(score / a.cap);
        }
        bool is_seen = query < queries && seen(query / group, slot + at);
        scores[g + (e / 2) * 8][at] = is_seen ? score : nothing;
      }
    }
    __syncthreads();
    // A warp has four queries.
#pragma unroll
    for (int i = 0; i < tile_queries / attention_warps; i++) {
      int query = warp * (tile_queries / attention_warps) + i;
      float low = scores[query][lane], high = scores[query][lane + warp_size];
      float largest = warp_max(fmaxf(low, high));
      low = weight_of(low, largest), high = weight_of(high, largest);
      float total = warp_sum(low + high);
      weights[query][lane] = narrow<T>(low);
      weights[query][lane + warp_size] = narrow<T>(high);
      if (lane == 0) {
        part_most[query] = largest, part_sum[query] = total;
      }
    }
    asm volatile("cp.async.wait_all;");
    __syncthreads();

    // Values: a warp has a quarter of the elements.
    float own[value_tiles][4] = {};
#pragma unroll
    for (int k = 0; k < part_slots / 16; k++) {
      uint32_t p[4];
      p[0] = *reinterpret_cast<uint32_t*>(&weights[g][16 * k + 2 * t]);
      p[1] = *reinterpret_cast<uint32_t*>(&weights[g + 8][16 * k + 2 * t]);
      p[2] = *reinterpret_cast<uint32_t*>(&weights[g][16 * k + 2 * t + 8]);
      p[3] = *reinterpret_cast<uint32_t*>(&weights[g + 8][16 * k + 2 * t + 8]);
#pragma unroll
      for (int n = 0; n < value_tiles; n += 2) {
        uint32_t v[4];
        load_transposed(v, values + (16 * k + lane % 16) * padded + warp * (D / attention_warps) + 8 * n + lane / 16 * 8);
        multiply<T>(own[n], p, v[0], v[1]);
        multiply<T>(own[n + 1], p, v[2], v[3]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float of_part = part_most[g + 8 * h], larger = fmaxf(most[h], of_part);
      float old = weight_of(most[h], larger), fresh = weight_of(of_part, larger);
      sum[h] = joined(sum[h], old, part_sum[g + 8 * h], fresh);
#pragma unroll
      for (int n = 0; n < value_tiles; n++) {
        y[n][2 * h] = joined(y[n][2 * h], old, own[n][2 * h], fresh);
        y[n][2 * h + 1] = joined(y[n][2 * h + 1], old, own[n][2 * h + 1], fresh);
      }
      most[h] = larger;
    }
  }

  // A query's values times this are its result.
  auto last_factor = [&](int query, float most, float sum) {
    if (a.sinks != nullptr) {
      // The sink is a score without a value.
      float sink = a.sinks[kv_head * group + query % group], larger = fmaxf(sink, most), old = weight_of(most, larger);
      sum = joined(sum, old, weight_of(sink, larger), 1.0f);
      return sum > 0 ? old / sum : 0.0f;
    }
    return sum > 0 ? 1.0f / sum : 0.0f;
  };
  auto result = [&](int query, int d) {
    int token = query / group, head = kv_head * group + query % group;
    return static_cast<T*>(a.y) + ((static_cast<int64_t>(row) * a.tokens + token) * a.heads + head) * value_dim + d;
  };

  if (a.parts == 1 || count == 1) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int query = first + g + 8 * h;
      if (query >= queries) {
        continue;
      }
      float factor = last_factor(query, most[h], sum[h]);
#pragma unroll
      for (int n = 0; n < value_tiles; n++) {
        int d = warp * (D / attention_warps) + 8 * n + 2 * t;
        if (d < value_dim) {
          *reinterpret_cast<uint32_t*>(result(query, d)) = pair<T>(y[n][2 * h] * factor, y[n][2 * h + 1] * factor);
        }
      }
    }
    return;
  }

  // Memory of a tile: of each part D values, the largest score and the sum of each query; behind them, of each part and query, what
  // the values before it and its own are multiplied with.
  constexpr int of_part = tile_queries * (D + 2);
  int64_t index = (static_cast<int64_t>(row) * a.kv_heads + kv_head) * (gridDim.x / a.parts) + tile;
  float* memory = a.partial + index * a.parts * (of_part + 2 * tile_queries);
  float* mine = memory + part * of_part;
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int n = 0; n < value_tiles; n++) {
      int d = warp * (D / attention_warps) + 8 * n + 2 * t;
      *reinterpret_cast<float2*>(mine + (g + 8 * h) * D + d) = make_float2(y[n][2 * h], y[n][2 * h + 1]);
    }
    if (warp == 0 && t == 0) {
      mine[tile_queries * D + g + 8 * h] = most[h];
      mine[tile_queries * (D + 1) + g + 8 * h] = sum[h];
    }
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(a.tickets + index, 1u) == static_cast<uint32_t>(count - 1);
    if (is_last) {
      a.tickets[index] = 0;
    }
  }
  __syncthreads();
  if (!is_last) {
    return;
  }
  __threadfence();
  begin = range.first / part_slots, end = begin + count;
  float* factors = memory + a.parts * of_part;
  if (threadIdx.x < tile_queries && first + static_cast<int>(threadIdx.x) < queries) {
    float most = nothing, sum = 0;
    for (int c = begin; c < end; c++) {
      const float* from = memory + c * of_part + tile_queries * D + threadIdx.x;
      float of_part = __ldcg(from), larger = fmaxf(most, of_part);
      float old = weight_of(most, larger), fresh = weight_of(of_part, larger);
      sum = joined(sum, old, __ldcg(from + tile_queries), fresh);
      factors[(2 * c) * tile_queries + threadIdx.x] = old;
      factors[(2 * c + 1) * tile_queries + threadIdx.x] = fresh;
      most = larger;
    }
    part_sum[threadIdx.x] = last_factor(first + threadIdx.x, most, sum);
  }
  __syncthreads();
  int some = min(tile_queries, queries - first);
  for (int i = threadIdx.x; i < some * (D / 4); i += attention_threads) {
    int query = i / (D / 4), d = i % (D / 4) * 4;
    if (d >= value_dim) {
      continue;
    }
    float4 all = {};
    for (int c = begin; c < end; c++) {
      float4 own = __ldcg(reinterpret_cast<const float4*>(memory + c * of_part + query * D + d));
      float old = factors[(2 * c) * tile_queries + query], fresh = factors[(2 * c + 1) * tile_queries + query];
      all.x = joined(all.x, old, own.x, fresh);
      all.y = joined(all.y, old, own.y, fresh);
      all.z = joined(all.z, old, own.z, fresh);
      all.w = joined(all.w, old, own.w, fresh);
    }
    float factor = part_sum[query];
    uint2 both = {pair<T>(all.x * factor, all.y * factor), pair<T>(all.z * factor, all.w * factor)};
    *reinterpret_cast<uint2*>(result(first + query, d)) = both;
  }
}

} // namespace mlxrs::cuda

#define MLXRS_ATTENTION(T, D)                                                                                       \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::attention_threads)                                     \
      attention_##T##_##D(const __grid_constant__ mlxrs::cuda::AttentionArgs a, int dim, int value_dim) {           \
    mlxrs::cuda::attention<mlxrs::cuda::T, D>(a, dim, value_dim);                                                   \
  }
MLXRS_ATTENTION(bf16, 64)
MLXRS_ATTENTION(bf16, 128)
MLXRS_ATTENTION(bf16, 256)
MLXRS_ATTENTION(f16, 64)
MLXRS_ATTENTION(f16, 128)
MLXRS_ATTENTION(f16, 256)
