// Linear attention with a decaying state, one token after the other: the gated delta rule with a decay for each head
// (`delta`) or for each channel (`channels`), and the scan of Mamba 2 (`scan`). With k scaled to length 1 and q to
// length 1 / sqrt(dim) (the scan uses both unscaled), each token computes, for a state S [value_dim, dim] in F32:
// delta, channels: S = S diag(decay) + beta (v - S diag(decay) k) k^T; scan: S = S decay + beta v k^T; y = S q (+ skip
// v for the scan).
//
// Threads: eight threads share a row of S. Thread l of them has the groups of eight columns l, l + 8, and so on, in
// registers from the first token to the last. Eight threads have two rows; a block has 128 threads and 32 rows.
// Grid: blockIdx.x is the group of 32 rows of S, blockIdx.y the head, blockIdx.z the row of the batch. Of ragged rows, the
// last ones come first, because prompts are the last rows of a step; one more block sets tokens of no row to 0. A block
// reads its part of a state before it writes, and no other block uses that part, so states may be updated in place.
// Order of sums: it depends on `dim` only. So several tokens at once give the same bits as single tokens, and a row's
// result does not depend on the batch.
// Bound: for one token, memory bandwidth for reading and writing the state. For prompts, the latency of a token (about
// half a microsecond), so the next token is loaded while one is computed.
#pragma once

#include "cuda/device.cuh"
#include "ops/delta/cuda/args.h"
#include "ops/delta/cuda/rows.cuh"

namespace mlxrs::cuda {

enum class Rule { delta, channels, scan };

constexpr int delta_threads = 128, row_lanes = 8, own_rows = delta_block_rows * row_lanes / delta_threads;

// The sum over the eight threads that share a row.
__device__ inline float row_sum(float x) {
#pragma unroll
  for (int step = row_lanes / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(~0u, x, step);
  }
  return x;
}

__device__ inline float softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

// The decay of the delta rule, from the sum of its input and bias.
__device__ inline float decay_of(const DeltaArgs& a, float rate, float input) {
  return expf(a.bound < 0 ? a.bound / (1.0f + expf(-rate * input)) : -rate * softplus(input));
}

// Loads eight elements from column c on, zeros after the last column. `whole` allows a 16-byte load.
template <class T>
__device__ inline void load_eight(const T* from, int c, int dim, bool whole, T (&y)[8]) {
  if (whole) {
    *reinterpret_cast<uint4*>(y) = c < dim ? *reinterpret_cast<const uint4*>(from + c) : make_uint4(0, 0, 0, 0);
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; j++) {
    y[j] = c + j < dim ? from[c + j] : narrow<T>(0.0f);
  }
}

// The thread's inputs of one token.
template <class T, int Eights, Rule R>
struct DeltaToken {
  static constexpr int decays = R == Rule::channels ? Eights : 1;
  __align__(16) T q[Eights][8];
  __align__(16) T k[Eights][8];
  __align__(16) T a[decays][8];
  T v[own_rows];
  float b;

  __device__ void load(const DeltaArgs& of, int64_t at, int head, int first, int lane) {
    bool scans = R == Rule::scan;
    int keys = of.key_heads * of.dim, values = of.heads * of.value_dim, key_head = head / (of.heads / of.key_heads);
    int64_t gate = at * of.heads + head;
    const T* x = static_cast<const T*>(of.x) + at * of.width;
    const T* qs = x + (scans ? values + keys : 0) + key_head * of.dim;
    const T* ks = x + (scans ? values : keys) + key_head * of.dim;
    const T* vs = x + (scans ? 0 : 2 * keys) + head * of.value_dim;
    const T* as = static_cast<const T*>(of.a) + (R == Rule::channels ? gate * of.dim : gate);
#pragma unroll
    for (int i = 0; i < Eights; i++) {
      int c = 8 * (lane + row_lanes * i);
      load_eight(qs, c, of.dim, of.whole, q[i]);
      load_eight(ks, c, of.dim, of.whole, k[i]);
      if (R == Rule::channels) {
        load_eight(as, c, of.dim, of.whole, a[i % decays]);
      }
    }
    if (R != Rule::channels) {
      a[0][0] = as[0];
    }
    b = scans ? 0.0f : wide(static_cast<const T*>(of.b)[gate]);
#pragma unroll
    for (int r = 0; r < own_rows; r++) {
      v[r] = first + r < of.value_dim ? vs[first + r] : narrow<T>(0.0f);
    }
  }
};

// For keys of at most 64 * Eights elements.
template <class T, int Eights, Rule R, bool Ragged>
__device__ void delta(const DeltaArgs& a) {
  wait_for_previous();
  int lane = threadIdx.x % row_lanes, head = blockIdx.y, row = Ragged ? gridDim.z - 1 - blockIdx.z : blockIdx.z;
  int first = blockIdx.x * delta_block_rows + threadIdx.x / row_lanes * own_rows;
  auto write = [&](int64_t at, int r, float y) {
    if (lane == 0 && first + r < a.value_dim) {
      static_cast<T*>(a.y)[(at * a.heads + head) * a.value_dim + first + r] = narrow<T>(y);
    }
  };
  // Sets the outputs of tokens `at` .. `end` to 0.
  auto clear = [&](int64_t at, int64_t end) {
    for (; at < end; at++) {
#pragma unroll
      for (int r = 0; r < own_rows; r++) {
        write(at, r, 0.0f);
      }
    }
  };
  int64_t begin, end;
  int real;
  if (Ragged) {
    if (row == a.rows.count) {
      return clear(row_start(a.rows, row, a.tokens), a.tokens);
    }
    begin = row_start(a.rows, row, a.tokens), real = row_start(a.rows, row + 1, a.tokens) - static_cast<int>(begin);
    if (real <= 0) {
      return;
    }
    end = begin + real;
  } else {
    begin = static_cast<int64_t>(row) * a.tokens, end = begin + a.tokens;
    real = min(max(a.widths[row], 0), a.tokens);
  }
  float rate = a.rate[head], skip = R == Rule::scan ? static_cast<const float*>(a.b)[head] : 0.0f;
  float q_factor = 1.0f / sqrtf(static_cast<float>(a.dim));
  // The part of the state in slot or row `of`.
  auto of_state = [&](int of) { return ((static_cast<int64_t>(of) * a.heads + head) * a.value_dim + first) * a.dim; };
  int before = Ragged ? slot_before(a.rows, row) : row;
  float state[own_rows][Eights][8];
  auto column = [&](int i, int j) { return 8 * (lane + row_lanes * i) + j; };
#pragma unroll
  for (int r = 0; r < own_rows; r++) {
#pragma unroll
    for (int i = 0; i < Eights; i++) {
#pragma unroll
      for (int j = 0; j < 8; j++) {
        bool is_there = first + r < a.value_dim && column(i, j) < a.dim && (!Ragged || before >= 0);
        state[r][i][j] = is_there ? a.before[of_state(before) + r * a.dim + column(i, j)] : 0.0f;
      }
    }
  }
  auto keep = [&](int slot) {
#pragma unroll
    for (int r = 0; r < own_rows; r++) {
#pragma unroll
      for (int i = 0; i < Eights; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
          if (first + r < a.value_dim && column(i, j) < a.dim) {
            a.after[of_state(slot) + r * a.dim + column(i, j)] = state[r][i][j];
          }
        }
      }
    }
  };

  DeltaToken<T, Eights, R> next;
  if (real > 0) {
    next.load(a, begin, head, first, lane);
  }
  for (int token = 0; token < real; token++) {
    auto own = next;
    if (token + 1 < real) {
      next.load(a, begin + token + 1, head, first, lane);
    }
    // Queries and keys are scaled to length 1, except for the scan.
    float q_scale = 1, k_scale = 1;
    if (R != Rule::scan) {
      float q_squares = 0, k_squares = 0;
#pragma unroll
      for (int i = 0; i < Eights; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
          q_squares = fmaf(wide(own.q[i][j]), wide(own.q[i][j]), q_squares);
          k_squares = fmaf(wide(own.k[i][j]), wide(own.k[i][j]), k_squares);
        }
      }
      q_scale = q_factor / sqrtf(row_sum(q_squares) + 1e-6f);
      k_scale = 1.0f / sqrtf(row_sum(k_squares) + 1e-6f);
    }
    float decays[R == Rule::channels ? Eights : 1][8], beta;
    if (R == Rule::channels) {
#pragma unroll
      for (int i = 0; i < Eights; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
          int c = column(i, j);
          float bias = c < a.dim ? a.bias[head * a.dim + c] : 0.0f;
          decays[i % own.decays][j] = decay_of(a, rate, wide(own.a[i % own.decays][j]) + bias);
        }
      }
      beta = a.most / (1.0f + expf(-own.b));
    } else {
      float input = wide(own.a[0][0]) + a.bias[head], step = fminf(fmaxf(softplus(input), a.least), a.most);
      decays[0][0] = R == Rule::scan ? expf(-rate * step) : decay_of(a, rate, input);
      beta = R == Rule::scan ? step : a.most / (1.0f + expf(-own.b));
    }
    auto decay = [&](int i, int j) { return R == Rule::channels ? decays[i % own.decays][j] : decays[0][0]; };

    float change[own_rows];
#pragma unroll
    for (int r = 0; r < own_rows; r++) {
      float v = wide(own.v[r]);
      if (R == Rule::scan) {
        change[r] = beta * v;
        continue;
      }
      // What the decayed state gives for the key: S k.
      float known[2] = {};
#pragma unroll
      for (int i = 0; i < Eights; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
          float k = wide(own.k[i][j]) * k_scale;
          known[j % 2] = fmaf(state[r][i][j], R == Rule::channels ? k * decay(i, j) : k, known[j % 2]);
        }
      }
      float factor = R == Rule::channels ? 1.0f : decay(0, 0);
      change[r] = beta * (v - factor * row_sum(known[0] + known[1]));
    }
#pragma unroll
    for (int r = 0; r < own_rows; r++) {
      float read[2] = {};
#pragma unroll
      for (int i = 0; i < Eights; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
          float k = wide(own.k[i][j]) * k_scale, q = wide(own.q[i][j]) * q_scale;
          state[r][i][j] = fmaf(change[r], k, state[r][i][j] * decay(i, j));
          read[j % 2] = fmaf(state[r][i][j], q, read[j % 2]);
        }
      }
      write(begin + token, r, row_sum(read[0] + read[1]) + (R == Rule::scan ? skip * wide(own.v[r]) : 0.0f));
    }
    if (Ragged) {
      if (int slot = slot_after(a.rows, row, begin + token, token + 1 == real); slot >= 0) {
        keep(slot);
      }
    }
  }
  if (!Ragged) {
    clear(begin + real, end);
    keep(row);
  }
}

} // namespace mlxrs::cuda

#define MLXRS_DELTA(NAME, T, RULE, EIGHTS, RAGGED)                                                       \
  extern "C" __global__ void __launch_bounds__(mlxrs::cuda::delta_threads)                               \
      NAME##_##T##_##EIGHTS(const __grid_constant__ mlxrs::cuda::DeltaArgs a) {                          \
    mlxrs::cuda::delta<mlxrs::cuda::T, EIGHTS, mlxrs::cuda::Rule::RULE, RAGGED>(a);                      \
  }
