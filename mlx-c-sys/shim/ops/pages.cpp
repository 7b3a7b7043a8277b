#include "ops/pages.h"

#include <string>

namespace mlxrs::ops {
namespace {

[[noreturn]] void refuse(const char* operation, const std::string& fault) {
  throw std::invalid_argument(std::string(operation) + ": " + fault);
}
std::string text(const mx::array& a) {
  std::string dims;
  for (int size : a.shape()) {
    dims += (dims.empty() ? "" : ", ") + std::to_string(size);
  }
  return "[" + dims + "]";
}

} // namespace

void FlatRows::append(Arrays& to) const {
  to.push_back(starts);
  if (has_pages()) {
    to.insert(to.end(), {*lens, *tables});
  }
}

FlatRows FlatRows::of(std::span<const mx::array> inputs) {
  if (inputs.size() == 1) {
    return {inputs[0], std::nullopt, std::nullopt};
  }
  return {inputs[0], inputs[1], inputs[2]};
}

void check_rows(const FlatRows& rows, const char* operation) {
  auto check = [&](const mx::array& a, int axes, const char* name) {
    if (a.dtype() != mx::int32 || static_cast<int>(a.ndim()) != axes) {
      refuse(operation, std::string(name) + " must be I32 with " + std::to_string(axes) + (axes == 1 ? " axis" : " axes"));
    }
  };
  check(rows.starts, 1, "starts");
  if (rows.count() < 1) {
    refuse(operation, "starts needs two numbers or more, found " + text(rows.starts));
  }
  if (rows.has_pages()) {
    check(*rows.lens, 1, "lens");
    check(*rows.tables, 2, "tables");
    if (rows.lens->shape(0) != rows.count() || rows.tables->shape(0) != rows.count() || rows.tables->shape(1) < 1) {
      refuse(
          operation,
          "starts " + text(rows.starts) + ", lens " + text(*rows.lens) + " and tables " + text(*rows.tables) + " do not fit each other");
    }
  }
}

void check_pool(const mx::array& pool, const char* operation) {
  int page = pool.ndim() == 4 ? pool.shape(2) : 0;
  if (page < 16 || page > 256 || (page & (page - 1)) != 0 || pool.size() == 0) {
    refuse(
        operation,
        "a pool [pages, heads, positions of a page, features] has pages of 16, 32, 64, 128 or 256 positions, found " + text(pool));
  }
}

mx::array rows_of_tokens(const FlatRows& rows, int tokens, mx::Stream s) {
  // The number of rows that end at the token or before it.
  auto ends = mx::slice(rows.starts, {1}, {rows.count() + 1}, s);
  auto token = mx::reshape(mx::arange(0, tokens, 1, mx::int32, s), {tokens, 1}, s);
  auto ended = mx::less_equal(mx::reshape(ends, {1, rows.count()}, s), token, s);
  return mx::sum(mx::astype(ended, mx::int32, s), 1, false, s);
}

mx::array positions_of_tokens(const FlatRows& rows, int tokens, mx::Stream s) {
  auto row = mx::minimum(rows_of_tokens(rows, tokens, s), mx::array(rows.count() - 1, mx::int32), s);
  auto at = mx::subtract(mx::arange(0, tokens, 1, mx::int32, s), mx::take(rows.starts, row, 0, s), s);
  return rows.has_pages() ? mx::add(at, mx::take(*rows.lens, row, 0, s), s) : at;
}

Step::Step(std::span<const mx::array> inputs, int tokens, int pages, int page)
    : rows_(inputs[0].shape(0) - 1), tokens_(tokens), pages_(pages), page_(page), starts_(inputs[0].data<int32_t>()),
      start_step_(inputs[0].strides(0)) {
  if (inputs.size() > 1) {
    const auto &lens = inputs[1], &tables = inputs[2];
    lens_ = lens.data<int32_t>();
    len_step_ = lens.strides(0);
    tables_ = tables.data<int32_t>();
    table_row_ = tables.strides(0);
    table_step_ = tables.strides(1);
    table_size_ = tables.shape(1);
  }
}

int Step::row_of(int token) const {
  // The last row that begins at the token or before it. Rows without tokens begin where the next row does.
  int low = 0, high = rows_;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (begin(middle) <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

void Step::check(long window, long chunk, long columns) const {
  auto refuse = [](const std::string& fault) { throw std::out_of_range("a flat step: " + fault); };
  int last = begin(0);
  if (last != 0) {
    refuse("starts must begin with 0, found " + std::to_string(last));
  }
  for (int row = 0; row < rows_; row++) {
    int end = begin(row + 1);
    if (end < last || end > tokens_) {
      refuse(
          "starts must ascend to at most " + std::to_string(tokens_) + " tokens, found " + std::to_string(last) + " and " +
          std::to_string(end));
    }
    last = end;
    long from = position(row), to = from + count(row);
    if (columns > 0 && count(row) > 0 && to > columns) {
      refuse(
          "row " + std::to_string(row) + " has " + std::to_string(to) + " positions, its mask has " + std::to_string(columns));
    }
    if (lens_ == nullptr || count(row) == 0) {
      continue;
    }
    if (from < 0 || to > std::numeric_limits<int32_t>::max()) {
      refuse("row " + std::to_string(row) + " cannot hold " + std::to_string(from) + " positions");
    }
    long first = first_seen(from, window, chunk);
    long pages = (to - 1) / page_ - first / page_ + 1;
    if (pages > table_size_) {
      refuse(
          "row " + std::to_string(row) + " needs " + std::to_string(pages) + " pages of " + std::to_string(page_) +
          " positions, its table has " + std::to_string(table_size_));
    }
    for (long position = first / page_ * page_; position < to; position += page_) {
      if (long page = page_of(row, position); page < 0 || page >= pages_) {
        refuse(
            "position " + std::to_string(position) + " of row " + std::to_string(row) + " is in page " + std::to_string(page) +
            ", the pool has " + std::to_string(pages_));
      }
    }
  }
}

} // namespace mlxrs::ops
