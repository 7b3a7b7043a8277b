// The CPU tasks of linear attention: some rows of one head's state, for all tokens of a row.
#pragma once

#include <span>

#include "delta.h"

namespace mlxrs::ops {

// Tokens that are processed one after the other: their numbers on the axis of all tokens, and the states [heads,
// value_dim, dim] before and after them.
struct DeltaSegment {
  long first, tokens;
  // Null for zeros.
  const float* before;
  // Null if the state is not kept. May be `before`.
  float* after;
};

// The segments of all rows, in the order of each row's tokens.
struct DeltaRows {
  std::vector<DeltaSegment> segments;
  // Where the segments of each row end.
  std::vector<size_t> ends;

  std::span<const DeltaSegment> of(size_t row) const {
    size_t begin = row > 0 ? ends[row - 1] : 0;
    return std::span(segments).subspan(begin, ends[row] - begin);
  }
};

// The inputs of all tokens, and the memory of their outputs. Built when the node is queued, used by its task.
class DeltaTasks {
 public:
  // x [.., W]; `a` and `b` as in DeltaInputs; a state is [heads, value_dim, dim].
  DeltaTasks(const DeltaSettings& settings, const Arrays& in, long heads, long value_dim, long dim, mx::array& y);

  // Computes all tokens of the rows. The decays of the first `tokens` tokens of the axis are computed first.
  void run(long tokens, const DeltaRows& rows) const;
  // Sets the outputs of tokens first .. end to zero.
  void clear(long first, long end) const;

 private:
  struct Factors;
  struct Task;

  Factors factors(long tokens) const;
  std::vector<Task> tasks(const DeltaRows& rows) const;
  void update(const Factors& of, std::span<const DeltaSegment> row, const Task& task) const;

  DeltaSettings settings_;
  RecurrentKernels kernel_;
  float (*to_float_)(const void* x, long i);
  long size_, width_, heads_, value_dim_, dim_;
  RowMajor x_, a_, b_, rate_, bias_;
  char* y_;
};

} // namespace mlxrs::ops
