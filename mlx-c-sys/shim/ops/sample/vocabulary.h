// Rows of logits for the sampling nodes, with the passes over them that the nodes share.
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
  // Orders by value, the largest first, and equal values by id. NaN counts as minus infinity.
  bool operator<(const Entry& that) const {
    return value != that.value ? value > that.value : id < that.id;
  }
};

// Rows of logits, divided into pieces. The pieces do not depend on the number of threads.
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
  // The address of a dense row. A strided row is copied to the thread's workspace, which has room for `nucleus` after
  // it.
  const char* row(long row) const {
    return xs_(static_cast<uint32_t>(row), xs_.in_order() ? nullptr : workspace(3 * n_));
  }

  // The largest element of each row, the first of equal ones. Uses all threads.
  std::vector<Entry> largest() const;

  // The largest of each `peak_of` elements, row after row, and for each row whether it has no NaN. Uses all threads.
  struct Peaks {
    std::vector<float> values;
    std::vector<char> numbers; // one for each row
    long of_row;

    const float* of(long row) const {
      return values.data() + row * of_row;
    }
  };
  Peaks peaks() const;
  // The largest element of a row, the first of equal ones.
  Entry best(const char* row, const float* peaks) const;
  // At least the `count` largest elements of a row, in the order of ids.
  std::vector<Entry> contenders(const char* row, const float* peaks, long count) const;
  // The threshold of top-p: the smallest logit that is kept when the likeliest are kept until their probabilities reach
  // `p`. Minus infinity if all are kept. `best` is the largest logit.
  float nucleus(const char* row, float best, float p) const;

 private:
  // Calls body(row, first element, number of elements, number of the piece) for each piece of all rows.
  template <typename Body>
  void each_piece(const Body& body) const;

  Vectors xs_;
  long n_, rows_, of_row_, peaks_of_row_;
  size_t itemsize_;
  const ChooseKernels* kernels_;
};

} // namespace mlxrs::ops
