// Passes over logits that the nodes of sampling share.
#pragma once

#include <vector>

#include "ops/node.h"

namespace mlxrs::ops {

inline const ChooseKernels& choose_kernels(mx::Dtype dtype) {
  return kernels().choose[static_cast<int>(type_of(dtype))];
}

struct Entry {
  float value;
  uint32_t id;
  // Best first: the larger, and of equal ones the one of the lower id. NaN counts as minus infinity.
  bool operator<(const Entry& that) const {
    return value != that.value ? value > that.value : id < that.id;
  }
};

// Rows of logits, cut into pieces that do not depend on the number of threads.
class Vocabulary {
 public:
  explicit Vocabulary(const mx::array& x);

  long rows() const {
    return rows_;
  }
  long size() const {
    return n_;
  }
  const ChooseKernels& kernels() const {
    return *kernels_;
  }
  // A row, dense: it may lie in the thread's workspace, with room behind it for `nucleus`.
  const char* row(long row) const {
    return xs_(static_cast<uint32_t>(row), xs_.in_order() ? nullptr : workspace(3 * n_));
  }

  // The largest of each row, of equal ones the first. Runs on all threads.
  std::vector<Entry> largest() const;

  // The peaks of all rows, one row after the other, and whether a row is without NaN. Runs on all threads.
  struct Peaks {
    std::vector<float> values;
    std::vector<char> numbers; // a row
    long of_row;

    const float* of(long row) const {
      return values.data() + row * of_row;
    }
  };
  Peaks peaks() const;
  // The largest of a row, of equal ones the first.
  Entry best(const char* row, const float* peaks) const;
  // A superset of the `count` largest of a row, by id.
  std::vector<Entry> contenders(const char* row, const float* peaks, long count) const;
  // The threshold of top-p: the least logit that is kept when the likeliest are kept until they reach the probability `p`; minus infinity
  // keeps all. `best` is the largest logit.
  float nucleus(const char* row, float best, float p) const;

 private:
  // Runs body(row, where in it, elements, piece) for each piece of all rows.
  template <typename Body>
  void each_piece(const Body& body) const;

  Vectors xs_;
  long n_, rows_, of_row_, peaks_of_row_;
  size_t itemsize_;
  const ChooseKernels* kernels_;
};

} // namespace mlxrs::ops
