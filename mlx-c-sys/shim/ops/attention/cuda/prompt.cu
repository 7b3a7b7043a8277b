// The function of attention.cu for many queries, with the same results to the bit: y = softmax(cap(scale q k^T) + mask) v.
//
// Grid: blockIdx.x is the KV head and the tile of 16 queries per warp, the last tiles first because they see most keys
// in a causal mask; blockIdx.y is the row. A block has `Warps` warps. Each warp computes 16 queries that share a KV head
// and goes through all parts of 64 slots; the warps share the keys and values in shared memory.
// Order of sums: that of attention.cu. The scores of a query are in four threads here and in a warp there, but they are
// added in the same tree.
// Memory: the values of a part are loaded during its scores, and the keys of the next part during its weighted values.
// Bound: tensor cores (mma.sync) and the exponentials.
#include "cuda/args.h"
#include "cuda/device.cuh"
#include "cuda/key_mask.h"
#include "ops/attention/cuda/parts.cuh"

namespace mlxrs::cuda {

// Loads 64 slots of keys or values to shared memory, with zeros for slots outside of `range`. Rows of shared memory are
// `padded` elements apart. `from` is the first slot of the part.
template <class T, int D, int Threads>
__device__ inline void load_part(T* to, int padded, const T* from, int64_t stride, int dim, int slot, Range range) {
  // Not unrolled: the addresses would take registers that results need.
#pragma unroll 1
  for (int i = threadIdx.x; i < part_slots * (D / 8); i += Threads) {
    int j = i / (D / 8), d = i % (D / 8) * 8;
    if (slot + j >= range.first && slot + j < range.end && d < dim) {
      copy_16_bytes(to + j * padded + d, from + j * stride + d);
    } else {
      *reinterpret_cast<uint4*>(to + j * padded + d) = make_uint4(0, 0, 0, 0);
    }
  }
  asm volatile("cp.async.commit_group;");
}

// For heads of at most D elements, a multiple of 8.
template <class T, int D, int Warps>
__device__ void prompt(const AttentionArgs& a, int dim, int value_dim) {
  // Strides in shared memory for which the loads below have no bank conflicts.
  constexpr int blocks = D / 32, key_stride = D + 32, value_stride = D + 8, threads = Warps * warp_size, key_tiles = part_slots / 8,
                tiles_at_once = D <= 128 ? 4 : 2;
  // Large queries do not fit into registers beside the results. They are in shared memory if there is room, and are read
  // again for each part otherwise.
  constexpr bool keeps_queries = D <= 128, shares_queries = !keeps_queries && has_room;
  extern __shared__ __align__(16) uint4 shared[];
  T *keys = reinterpret_cast<T*>(shared), *values = keys + part_slots * key_stride, *shared_queries = values + part_slots * value_stride;
  wait_for_previous();

  int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, g = lane / 4, t = lane % 4;
  int group = a.by_group.by, tiles = gridDim.x / a.kv_heads, row = blockIdx.y;
  RowTokens of_row(a, row);
  int queries = of_row.count * group;
  int tile = a.by_kv_heads.quotient(blockIdx.x), kv_head = blockIdx.x - tile * a.kv_heads;
  int block_first = (tiles - 1 - tile) * Warps * tile_queries, first = block_first + warp * tile_queries;
  if (a.flat.starts != nullptr) {
    clear_rest<T>(a, row, tile, kv_head, value_dim);
    if (block_first >= queries) {
      return;
    }
  }
  KeyMask seen = mask_of(a, row, of_row.count);

  // The slots that the queries of the block can see, and those that the warp's can.
  auto range_of = [&](int from, int count) {
    int last = min(from + count, queries) - 1;
    return seen.range(a.by_group.quotient(min(from, last)), a.by_group.quotient(last));
  };
  Range all = range_of(block_first, Warps * tile_queries), own = first < queries ? range_of(first, tile_queries) : Range{0, 0};
  Slots<T> all_keys(a, a.k, a.k_page, row, kv_head), all_values(a, a.v, a.v_page, row, kv_head);
  all_keys.begin_at(a, of_row), all_values.begin_at(a, of_row);

  const T* from[2];
  int position[2];
  bool is_query[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int query = first + g + 8 * h, token = a.by_group.quotient(min(query, queries - 1));
    int head = kv_head * group + min(query, queries - 1) - token * group;
    from[h] = static_cast<const T*>(a.q.at) + (a.flat.starts != nullptr ? 0 : row * a.q.row) + head * a.q.head + (of_row.first + token) * a.q.token;
    is_query[h] = query < queries;
    position[h] = is_query[h] ? seen.offset + token : KeyMask::nowhere;
  }
  auto load_query = [&](int b, int h) {
    if constexpr (shares_queries) {
      return *reinterpret_cast<const uint4*>(shared_queries + (warp * tile_queries + g + 8 * h) * key_stride + 32 * b + 8 * t);
    }
    bool is_there = is_query[h] && 32 * b + 8 * t < dim;
    return is_there ? *reinterpret_cast<const uint4*>(from[h] + 32 * b + 8 * t) : make_uint4(0, 0, 0, 0);
  };
  uint4 kept[keeps_queries ? blocks : 1][2];
  if constexpr (keeps_queries) {
#pragma unroll
    for (int b = 0; b < blocks; b++) {
      kept[b][0] = load_query(b, 0), kept[b][1] = load_query(b, 1);
    }
  } else if constexpr (shares_queries) {
    // A thread copies what it reads itself.
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int b = 0; b < blocks; b++) {
        T* to = shared_queries + (warp * tile_queries + g + 8 * h) * key_stride + 32 * b + 8 * t;
        if (is_query[h] && 32 * b + 8 * t < dim) {
          copy_16_bytes(to, from[h] + 32 * b + 8 * t);
        } else {
          *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
        }
      }
    }
  }

  float y[D / 8][4] = {}, most[2] = {nothing, nothing}, sum[2] = {0, 0};
  int begin = all.first / part_slots, end = max(begin + 1, (all.end + part_slots - 1) / part_slots);
  load_part<T, D, threads>(keys, key_stride, all_keys.part(begin), a.k.token, dim, begin * part_slots, all);
  for (int c = begin; c < end; c++) {
    int slot = c * part_slots;
    // The keys of this part have arrived, and no warp reads the values of the part before.
    asm volatile("cp.async.wait_all;");
    __syncthreads();
    load_part<T, D, threads>(values, value_stride, all_values.part(c), a.v.token, value_dim, slot, all);

    // Steps of 16 slots that the warp's queries do not see are left out. They would add zeros.
    int first_step = max(own.first - slot, 0) / 16, steps = (own.end - slot + 15) / 16;
    auto is_step = [&](int k) { return k >= first_step && k < steps; };
    bool is_seen = own.first < slot + part_slots && own.end > slot;
    float s[key_tiles][4];
    if (is_seen) {
      // Some tiles of slots at a time, because each score has two accumulators, as in attention.cu.
#pragma unroll
      for (int first_tile = 0; first_tile < key_tiles; first_tile += tiles_at_once) {
        float parts[tiles_at_once][2][4] = {};
#pragma unroll
        for (int b = 0; b < blocks; b++) {
          uint4 upper = keeps_queries ? kept[keeps_queries ? b : 0][0] : load_query(b, 0);
          uint4 lower = keeps_queries ? kept[keeps_queries ? b : 0][1] : load_query(b, 1);
#pragma unroll
          for (int n = 0; n < tiles_at_once; n++) {
            if (!is_step((first_tile + n) / 2)) {
              continue;
            }
            uint4 k = *reinterpret_cast<const uint4*>(keys + (8 * (first_tile + n) + g) * key_stride + 32 * b + 8 * t);
            multiply<T>(parts[n][b % 2], {upper.x, lower.x, upper.y, lower.y}, k.x, k.y);
            multiply<T>(parts[n][b % 2], {upper.z, lower.z, upper.w, lower.w}, k.z, k.w);
          }
        }
#pragma unroll
        for (int n = 0; n < tiles_at_once; n++) {
#pragma unroll
          for (int e = 0; e < 4; e++) {
            s[first_tile + n][e] = (parts[n][0][e] + parts[n][1][e]) * a.scale;
          }
        }
      }
    }
    // All warps have read the keys.
    __syncthreads();
    if (c + 1 < end) {
      load_part<T, D, threads>(keys, key_stride, all_keys.part(c + 1), a.k.token, dim, slot + part_slots, all);
    } else {
      // An empty group, because wait_group counts groups.
      asm volatile("cp.async.commit_group;");
    }

    float old[2], fresh[2];
    uint32_t weights[part_slots / 16][4];
    if (is_seen) {
      if (a.cap > 0) {
#pragma unroll
        for (int n = 0; n < key_tiles; n++) {
#pragma unroll
          for (int e = 0; e < 4; e++) {
            s[n][e] = a.cap * tanhf(s[n][e] / a.cap);
          }
        }
      }
      if (a.adds) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          int query = first + g + 8 * h, token = a.by_group.quotient(min(query, queries - 1)), head = kv_head * group + query - token * group;
#pragma unroll
          for (int i = 0; i < 2 * key_tiles; i++) {
            int key = seen.key(slot + 8 * (i / 2) + 2 * t + i % 2);
            if (seen.sees(position[h], key)) {
              float& score = s[i / 2][2 * h + i % 2];
              score = added_to(a, score, head, of_row.first + token, position[h], key);
            }
          }
        }
      }
      int last_query = min(first + tile_queries, queries) - 1;
      bool sees_all = seen.sees_all(a.by_group.quotient(first), a.by_group.quotient(last_query), slot, slot + part_slots - 1);
      if (!sees_all) {
#pragma unroll
        for (int n = 0; n < key_tiles; n++) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            int key = seen.key(slot + 8 * n + 2 * t + e);
#pragma unroll
            for (int h = 0; h < 2; h++) {
              s[n][2 * h + e] = seen.sees(position[h], key) ? s[n][2 * h + e] : nothing;
            }
          }
        }
      }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float largest = nothing;
#pragma unroll
        for (int n = 0; n < key_tiles; n++) {
          largest = fmaxf(largest, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
#pragma unroll
        for (int n = 0; n < key_tiles; n++) {
          s[n][2 * h] = weight_of(s[n][2 * h], largest), s[n][2 * h + 1] = weight_of(s[n][2 * h + 1], largest);
        }
        // The tree of attention.cu: slots 32 apart, then 16, 8, 4, 2 and 1 apart.
        float of[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          auto far = [&](int n) { return s[n][2 * h + e] + s[n + 4][2 * h + e]; };
          of[e] = (far(0) + far(2)) + (far(1) + far(3));
          of[e] += __shfl_xor_sync(~0u, of[e], 2);
          of[e] += __shfl_xor_sync(~0u, of[e], 1);
        }
        float larger = fmaxf(most[h], largest);
        old[h] = weight_of(most[h], larger), fresh[h] = weight_of(largest, larger);
        sum[h] = joined(sum[h], old[h], of[0] + of[1], fresh[h]);
        most[h] = larger;
      }
#pragma unroll
      for (int k = 0; k < part_slots / 16; k++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          weights[k][h] = pair<T>(s[2 * k][2 * h], s[2 * k][2 * h + 1]);
          weights[k][2 + h] = pair<T>(s[2 * k + 1][2 * h], s[2 * k + 1][2 * h + 1]);
        }
      }
    }
    // The values of this part have arrived; the keys of the next one may not have.
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    if (!is_seen) {
      continue;
    }
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      float now[2][4] = {};
#pragma unroll
      for (int k = 0; k < part_slots / 16; k++) {
        if (!is_step(k)) {
          continue;
        }
        uint32_t v[4];
        load_transposed(v, values + (16 * k + lane % 16) * value_stride + 8 * n + lane / 16 * 8);
        multiply<T>(now[0], weights[k], v[0], v[1]);
        multiply<T>(now[1], weights[k], v[2], v[3]);
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          y[n + i][e] = joined(y[n + i][e], old[e / 2], now[i][e], fresh[e / 2]);
        }
      }
    }
  }

#pragma unroll
  for (int h = 0; h < 2; h++) {
    int query = first + g + 8 * h;
    if (query >= queries) {
      continue;
    }
    int token = a.by_group.quotient(query), head = kv_head * group + query - token * group;
    float factor = factor_of(a.sinks, head, most[h], sum[h]);
    int64_t before = a.flat.starts != nullptr ? of_row.first : static_cast<int64_t>(row) * a.tokens;
    T* to = static_cast<T*>(a.y) + ((before + token) * a.heads + head) * value_dim;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
      int d = 8 * n + 2 * t;
      if (d < value_dim) {
        *reinterpret_cast<uint32_t*>(to + d) = pair<T>(y[n][2 * h] * factor, y[n][2 * h + 1] * factor);
      }
    }
  }
}

} // namespace mlxrs::cuda

// The last number of a kernel's name is its number of warps.
#define MLXRS_PROMPT(T, D, WARPS, BLOCKS)                                                                            \
  extern "C" __global__ void __launch_bounds__(WARPS * mlxrs::cuda::warp_size, BLOCKS)                                \
      prompt_##T##_##D##_##WARPS(const __grid_constant__ mlxrs::cuda::AttentionArgs a, int dim, int value_dim) {      \
    mlxrs::cuda::prompt<mlxrs::cuda::T, D, WARPS>(a, dim, value_dim);                                                \
  }
#define MLXRS_PROMPTS(T)      \
  MLXRS_PROMPT(T, 64, 4, 3)   \
  MLXRS_PROMPT(T, 64, 8, 1)   \
  MLXRS_PROMPT(T, 128, 4, 2)  \
  MLXRS_PROMPT(T, 128, 8, 1)  \
  MLXRS_PROMPT(T, 256, 4, 2)  \
  MLXRS_PROMPT(T, 256, 8, 1)
MLXRS_PROMPTS(bf16)
MLXRS_PROMPTS(f16)
