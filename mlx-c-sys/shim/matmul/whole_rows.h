// How the rows of a matrix are shared out among calls of a kernel. Included by the file of each instruction set.
//
// A Kernel has lanes_of<BITS, GROUP, Q, R>(product, weights, first, packed, row, rows, distance), which computes y for Q
// times at most `lanes` rows of weights, `distance` apart, and R rows of x from the first on, of which product.m are
// there; and beside(bits, rows): how many rows of weights go side by side, which share what is loaded of x.
#pragma once

#include <type_traits>

#include "whole_numbers.h"

namespace mlxrs::matmul {
namespace {

// Rows of weights whose sums are finished together.
constexpr long lanes = 16;

// Rows [row, row_end) of the weights with R rows of x. BITS is 4, 8, or 0 for any width.
template <class Kernel, int BITS, int GROUP, int R>
void rows_by(const Product& p, const Weights& w, const char* packed, long row, long row_end) {
  // Rows side by side lie far apart, so that each is one of some long stretches of memory, which are read faster than one.
  constexpr int Q = Kernel::beside(BITS, R);
  const long distance = (row_end - row) / (Q * lanes) * lanes, size = Kernel::row_size(w);
  auto each_block = [&](auto lanes_of, long row, long rows) {
    for (long first = 0; first < p.m; first += R) {
      lanes_of(p, w, first, packed + first * size, row, rows, distance);
    }
  };
  for (long i = 0; i < distance; i += lanes) {
    each_block(Kernel::template lanes_of<BITS, GROUP, Q, R>, row + i, lanes);
  }
  for (row += Q * distance; row < row_end; row += lanes) {
    each_block(Kernel::template lanes_of<BITS, GROUP, 1, R>, row, smaller(lanes, row_end - row));
  }
}

template <class Kernel, int R>
auto rows_for(const Weights& w) {
  auto by_group = [&](auto bits) {
    constexpr int BITS = decltype(bits)::value;
    return w.group == 32 ? rows_by<Kernel, BITS, 32, R>
        : w.group == 64  ? rows_by<Kernel, BITS, 64, R>
                         : rows_by<Kernel, BITS, 128, R>;
  };
  return w.bits == 4 ? by_group(std::integral_constant<int, 4>{})
      : w.bits == 8  ? by_group(std::integral_constant<int, 8>{})
                     : by_group(std::integral_constant<int, 0>{});
}

template <class Kernel>
void rows(const Product& p, const Weights& w, const void* packed, long row, long row_end, void*) {
  auto kernel = p.m == 1 ? rows_for<Kernel, 1>(w)
      : p.m == 2         ? rows_for<Kernel, 2>(w)
      : p.m == 3         ? rows_for<Kernel, 3>(w)
                         : rows_for<Kernel, 4>(w);
  kernel(p, w, static_cast<const char*>(packed), row, row_end);
}

template <class Kernel>
long packed_size(const Weights& w, long rows) {
  return rows * Kernel::row_size(w);
}

template <class Kernel>
constexpr Whole whole_of = {
    lanes, 4, packed_size<Kernel>, Kernel::pack, [](const Product&, const Weights&) { return 0L; }, rows<Kernel>};

} // namespace
} // namespace mlxrs::matmul
