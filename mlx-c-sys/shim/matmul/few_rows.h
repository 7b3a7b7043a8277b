// The loop over the rows of weights for kernels with few rows of x. Each instruction set's file includes this header.
//
// A Kernel has:
//   lanes_of<FORM, GROUP, Q, R>(product, weights, first, packed, row, rows, distance, scratch)
//                          computes y for Q blocks of at most `lanes` rows of weights, `distance` rows apart, and for R
//                          rows of x from row `first` on; rows of x from product.m on are skipped
//   scratch_size(weights)  the bytes of `scratch`
//   beside(form, rows)     the number Q of blocks that are multiplied together and share the loads of x
//   least_group            the smallest group that it supports
#pragma once

#include <type_traits>

#include "int_codes.h"
#include "runtime/isa.h"

namespace mlxrs::matmul {
namespace {

// The rows of weights whose sums are completed together.
constexpr long lanes = 16;

// Multiplies rows [row, row_end) of the weights with R rows of x, in Q blocks at a time.
template <class Kernel, Form FORM, int GROUP, int R, int Q>
void rows_beside(const Product& p, const Weights& w, const char* packed, long row, long row_end, void* scratch) {
  // Rows that are read together are far apart, because several long ranges of memory are read faster than one.
  const long distance = (row_end - row) / (Q * lanes) * lanes, size = Kernel::row_size(w);
  auto each_block = [&](auto lanes_of, long row, long rows) {
    for (long first = 0; first < p.m; first += R) {
      lanes_of(p, w, first, packed + first * size, row, rows, distance, scratch);
    }
  };
  for (long i = 0; i < distance; i += lanes) {
    each_block(Kernel::template lanes_of<FORM, GROUP, Q, R>, row + i, lanes);
  }
  for (row += Q * distance; row < row_end; row += lanes) {
    each_block(Kernel::template lanes_of<FORM, GROUP, 1, R>, row, smaller(lanes, row_end - row));
  }
}

template <class Kernel, Form FORM, int GROUP, int R>
void rows_by(const Product& p, const Weights& w, const char* packed, long row, long row_end, void* scratch) {
  constexpr int Q = Kernel::beside(FORM, R);
  // With one or two rows of x, memory bandwidth is the bottleneck.
  if constexpr (R <= 2 && Q > 2) {
    if (reads_best_in_two()) {
      return rows_beside<Kernel, FORM, GROUP, R, 2>(p, w, packed, row, row_end, scratch);
    }
  }
  rows_beside<Kernel, FORM, GROUP, R, Q>(p, w, packed, row, row_end, scratch);
}

// Selects the kernel by the form and the group size of the weights.
struct AnyForm {
  template <class Kernel, int R>
  static auto rows_for(const Weights& w) {
    auto by_group = [&](auto form) {
      constexpr Form FORM = decltype(form)::value;
      return w.group == 32 ? rows_by<Kernel, FORM, 32, R>
          : w.group == 64  ? rows_by<Kernel, FORM, 64, R>
                           : rows_by<Kernel, FORM, 128, R>;
    };
    if (w.coding == Coding::mxfp4) {
      return rows_by<Kernel, Form::e2m1, 32, R>;
    }
    if constexpr (Kernel::least_group == 16) {
      if (w.coding == Coding::nvfp4) {
        return rows_by<Kernel, Form::e2m1, 16, R>;
      }
    }
    return w.bits == 4 ? by_group(std::integral_constant<Form, Form::four>{})
        : w.bits == 8  ? by_group(std::integral_constant<Form, Form::eight>{})
                       : by_group(std::integral_constant<Form, Form::any>{});
  }
};
// Selects the only kernel of fp8_few_rows.h.
struct OfMxfp8 {
  template <class Kernel, int R>
  static auto rows_for(const Weights&) {
    return rows_by<Kernel, Form::eight, 32, R>;
  }
};

template <class Kernel, class Forms>
void rows(const Product& p, const Weights& w, const void* packed, long row, long row_end, void* scratch) {
  auto kernel = p.m == 1 ? Forms::template rows_for<Kernel, 1>(w)
      : p.m == 2         ? Forms::template rows_for<Kernel, 2>(w)
      : p.m == 3         ? Forms::template rows_for<Kernel, 3>(w)
                         : Forms::template rows_for<Kernel, 4>(w);
  kernel(p, w, static_cast<const char*>(packed), row, row_end, scratch);
}

template <class Kernel>
long packed_size(const Weights& w, long rows) {
  return rows * Kernel::row_size(w);
}

template <class Kernel, class Forms = AnyForm>
constexpr IntKernels few_rows_of = {
    lanes, 4, packed_size<Kernel>, Kernel::pack, [](const Product&, const Weights& w) { return Kernel::scratch_size(w); }, rows<Kernel, Forms>};

} // namespace
} // namespace mlxrs::matmul
