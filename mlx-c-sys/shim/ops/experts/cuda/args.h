// Arguments of the experts' CUDA kernels, shared by host and device, and the limits that divide rows into tasks.
#pragma once

#include <stdint.h>

#include "cuda/args.h"

namespace mlxrs::cuda {

// The matrices [n, k] of all experts, one after the other; the pointers are those of expert 0.
struct ExpertMatrices {
  const void* weight;
  const void* scales;
  const void* biases;
};

// The rows order[first] .. order[first + count - 1], all of one expert. A task with count 0 is empty.
struct ExpertTask {
  int expert, first, count;
};

struct ExpertsArgs {
  const void* x;           // [m / share, k]
  const uint32_t* indices; // [m], the expert of each row
  const int* order;        // [m], row numbers sorted by expert; unused if `tasks` is null
  const ExpertTask* tasks; // null for m <= few_indices: each block finds its own task
  ExpertMatrices of[2];    // one stack, or two for a gated product
  void* y;                 // [m, n]
  int experts, m, n, k;
  int group_bits; // log2(group size / 32)
  int share; // number of consecutive rows of y that read the same row of x
  int gate;  // -1 for a product without a gate
  Report report; // for indices out of range; unused if `tasks` is not null
};

struct GroupArgs {
  const uint32_t* indices;
  int* order;
  ExpertTask* tasks;
  int experts, m;
  int rows; // most rows of a task
  int most; // length of `tasks`
  Report report; // for indices out of range
};

// With at most this many rows, blocks find their tasks themselves and no grouping kernel runs.
constexpr int few_indices = 64;
// The most experts that `group_rows` supports: it keeps a counter for each in shared memory.
constexpr int most_experts = 4096;

// The length of the task table for tasks of at most `rows` rows. Each expert with rows can have one task that is not
// full.
constexpr int most_tasks(int m, int experts, int rows) {
  int asked = m < experts ? m : experts;
  return asked + (m - asked) / rows;
}

} // namespace mlxrs::cuda
