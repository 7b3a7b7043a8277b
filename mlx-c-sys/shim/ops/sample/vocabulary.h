// The parts that sampling kernels share.
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

  // The first of the largest of each row; all threads take part.
  std::vector<Entry> largest() const;

  // What `peaks` tells of all rows, one after the other, and where they are numbers only; all threads take part.
  struct Peaks {
    std::vector<float> values;
    std::vector<char> numbers; // a row
    long of_row;

    const float* of(long row) const {
      return values.data() + row * of_row;
    }
  };
  Peaks peaks() const;
  // The first of the largest of a row.
  Entry best(const char* row, const float* peaks) const;
  // All that can be among the `count` largest of a row, in the order of their ids.
  std::vector<Entry> contenders(const char* row, const float* peaks, long count) const;
  // The least of a row that is kept when the likeliest are kept for as long as those before have less than `p` together; minus infinity
  // for all. `best`: the largest.
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
