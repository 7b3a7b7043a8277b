// The arguments of the kernels of experts, as the host fills them and the device reads them, and how rows are divided into tasks.
#pragma once

#include <stdint.h>

namespace mlxrs::cuda {

// One matrix [n, k] of every expert.
struct ExpertMatrices {
  const void* weight;
  const void* scales;
  const void* biases;
};

// Some rows of one expert: `count` places of `order` from `first` on. Without rows there is nothing to do.
struct ExpertTask {
  int expert, first, count;
};

struct ExpertsArgs {
  const void* x;           // [m / share, k]
  const uint32_t* indices; // [m]
  const int* order;        // the rows, expert by expert
  const ExpertTask* tasks; // null: there are few rows, and each block finds its own task
  ExpertMatrices of[2];    // two for a gate
  void* y;                 // [m, n]
  int experts, m, n, k;
  int group_bits; // Groups have 32 times 2^group_bits elements.
  int share; // so many rows in turn have the same row of x
  int gate;  // -1: none
};

struct GroupArgs {
  const uint32_t* indices;
  int* order;
  ExpertTask* tasks;
  int experts, m;
  int rows; // of a task, at most
  int most; // tasks
};

// Up to so many rows blocks find their tasks themselves, without a kernel that groups the rows.
constexpr int few_indices = 64;
// So many experts at most.
constexpr int most_experts = 4096;

// How many tasks of at most `rows` rows there can be: each expert that is asked for may have one that is not full.
constexpr int most_tasks(int m, int experts, int rows) {
  int asked = m < experts ? m : experts;
  return asked + (m - asked) / rows;
}

} // namespace mlxrs::cuda
