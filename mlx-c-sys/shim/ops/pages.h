// The tokens of a flat step: the tokens of all rows are on one axis, and rows keep their positions in pages (see
// mlxrs_pages in mlxrs_fast.h).
#pragma once

#include <optional>
#include <span>

#include "ops/node.h"

namespace mlxrs::ops {

// The rows of a flat step. Without pages (`lens` and `tables`) they hold no positions before the step.
struct FlatRows {
  mx::array starts;               // I32 [B + 1]
  std::optional<mx::array> lens;   // I32 [B]
  std::optional<mx::array> tables; // I32 [B, P]

  int count() const {
    return starts.shape(0) - 1;
  }
  bool has_pages() const {
    return tables.has_value();
  }
  // Appends the arrays that are given to the inputs of a node.
  void append(Arrays& to) const;
  // The rows of a node with these inputs: one array, or three with pages.
  static FlatRows of(std::span<const mx::array> inputs);
};
// Throws if shapes or dtypes are not those of a flat step, or if `pool` is not a pool of pages.
void check_rows(const FlatRows& rows, const char* operation);
void check_pool(const mx::array& pool, const char* operation);

// The row of each of `tokens` tokens, I32 [T]. A token of no row has the number of rows.
mx::array rows_of_tokens(const FlatRows& rows, int tokens, mx::Stream s);
// The position of each token in its row, I32 [T]. Undefined for tokens of no row.
mx::array positions_of_tokens(const FlatRows& rows, int tokens, mx::Stream s);

// The first position that a query at position `at` sees (see mlxrs_seen).
inline long first_seen(long at, long window, long chunk) {
  return std::max({0L, window > 0 ? at - window + 1 : 0, chunk > 0 ? at / chunk * chunk : 0});
}

// The same, evaluated. It is read on the stream's thread, and its arrays must live as long.
class Step {
 public:
  // `pages` is the number of pages of the pool, and `page` their size; 0 without pages.
  Step(std::span<const mx::array> inputs, int tokens, int pages, int page);

  // Throws if the numbers in `starts` and `lens` are not those of a step, or if `tables` has no place for a position from
  // the first one that a row's first query sees on, or if a row has more positions than its mask has columns (0: there is no
  // mask). All methods below need checked numbers.
  void check(long window, long chunk, long columns) const;

  int rows() const {
    return rows_;
  }
  // The first token of a row. The first token of row `rows()` is the first one of no row.
  int begin(int row) const {
    return starts_[row * start_step_];
  }
  int count(int row) const {
    return begin(row + 1) - begin(row);
  }
  // The position of a row's first token.
  long position(int row) const {
    return lens_ != nullptr ? lens_[row * len_step_] : 0;
  }
  // The row of a token, or rows() for a token of no row.
  int row_of(int token) const;
  // The page and the slot of a position.
  long page_of(int row, long position) const {
    return tables_[row * table_row_ + position / page_ % table_size_ * table_step_];
  }
  long slot_of(long position) const {
    return position % page_;
  }
  long page_size() const {
    return page_;
  }
  const int32_t* table(int row) const {
    return tables_ + row * table_row_;
  }
  long table_size() const {
    return table_size_;
  }
  long table_step() const {
    return table_step_;
  }

 private:
  int rows_, tokens_, pages_;
  long page_;
  const int32_t *starts_, *lens_ = nullptr, *tables_ = nullptr;
  int64_t start_step_, len_step_ = 0, table_row_ = 0, table_step_ = 0;
  long table_size_ = 0;
};

} // namespace mlxrs::ops
