// The matrices of one call, and the division of their rows among threads.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "matmul.h"
#include "runtime/memory.h"
#include "runtime/threads.h"

namespace mlxrs::matmul {

// The matrices that one x is multiplied with. They differ only in their number of rows. Each has its own y; with `join`
// there are two matrices and one y.
struct Job {
  std::span<const Part> parts;
  Join join;

  // The properties that all matrices share (not n).
  const Weights& w() const {
    return parts[0].w;
  }
  // The rows of y: of all matrices together, or of one matrix with `join`.
  long n() const {
    long n = 0;
    for (const auto& part : parts) {
      n += part.w.n;
    }
    return join == nullptr ? n : w().n;
  }
};

inline long size_of(Float type) {
  return type == Float::f32 ? 4 : 2;
}

// Up to this many rows of x, memory bandwidth for the weights is the bottleneck. A task is then one long range of the
// weights.
constexpr long memory_bound_rows = 128;

inline long round_up(long n, long unit) {
  return (n + unit - 1) / unit * unit;
}

// Calls body(i) for each i in [0, n), on all threads if the loop has enough `elements` in total.
template <typename Body>
void each(long n, long elements, const Body& body) {
  if (elements < 1 << 14) {
    for (long i = 0; i < n; i++) {
      body(static_cast<uint32_t>(i));
    }
  } else {
    Threads::shared().each(static_cast<uint32_t>(n), body);
  }
}

// Rows [first, first + m) of x and of each y.
struct Band {
  long first, m;
};

// The threads that share a band, so that all threads have the same amount of work.
inline long threads_of(long bands) {
  long count = Threads::shared().count();
  return count / std::gcd(bands, count);
}

// Calls body(band, row, row_end) for bands of up to `band` rows of x and for ranges of [0, n). A range has at most
// `most` rows and is a multiple of `unit`; so is `most`. All threads share the loop if there is enough work, and each
// gets at least `parts` ranges.
template <typename Body>
void share_bands(const Product& p, const Job& job, long band, long unit, long parts, long most, const Body& body) {
  Threads& threads = Threads::shared();
  // Reading the weights takes time even if few rows are multiplied with them.
  long n = job.n(), bands = (p.m + band - 1) / band;
  double work = static_cast<double>(n) * job.w().k * std::max(p.m, 4L);
  long count = threads_of(bands), least = (n + most - 1) / most;
  long pieces = std::max(threads.count() < 2 || work < 200e3 ? 1 : parts * count, least > 1 ? round_up(least, count) : 1);
  long size = round_up((n + pieces - 1) / pieces, unit), tasks = (n + size - 1) / size * bands;
  // Tasks that read the same weights are adjacent.
  threads.each(static_cast<uint32_t>(tasks), [&](uint32_t i) {
    long first = i % bands * band, row = i / bands * size;
    body(Band{first, std::min(band, p.m - first)}, row, std::min(n, row + size));
  });
}

// The same with all rows of x in one band.
template <typename Body>
void share_rows(const Product& p, const Job& job, long unit, long parts, long most, const Body& body) {
  share_bands(p, job, p.m, unit, parts, most, [&](const Band&, long row, long row_end) { body(row, row_end); });
}

// The most rows of weights in a task with `join`: both products of m rows of x stay in L2.
inline long most_joined(const Product& p, const Job& job, long m, long unit, long most) {
  constexpr long bytes = 1 << 19;
  return job.join == nullptr ? most : std::clamp(bytes / (2 * m * size_of(p.type)) / unit * unit, unit, most);
}

// Calls kernel(product, weights, row, row_end) for the rows of each matrix that belong to a task. With `join` the
// products are written to the thread's memory and then joined.
template <typename Kernel>
void each_matrix(const Product& p, const Job& job, const Band& band, long row, long row_end, const Kernel& kernel) {
  const void* const* x = p.x + band.first;
  if (job.join == nullptr) {
    long first = 0;
    for (const auto& part : job.parts) {
      long begin = std::max(row - first, 0L), end = std::min(row_end - first, part.w.n);
      if (begin < end) {
        kernel(Product{p.type, band.m, x, part.y + band.first, p.is_read}, part.w, begin, end);
      }
      first += part.w.n;
    }
    return;
  }
  long n = row_end - row, size = size_of(p.type), bytes = round_up(n * size, 64);
  char* memory = for_join.of<char>(2 * band.m * bytes);
  std::vector<void*> rows(band.m);
  Product q{p.type, band.m, x, rows.data(), true};
  for (const auto& part : job.parts) {
    for (long i = 0; i < band.m; i++) {
      // The address that row 0 of y would have.
      rows[i] = memory + i * bytes - row * size;
    }
    kernel(q, part.w, row, row_end);
    memory += band.m * bytes;
  }
  memory -= 2 * band.m * bytes;
  for (long i = 0; i < band.m; i++) {
    const char* a = memory + i * bytes;
    job.join(a, a + band.m * bytes, n, static_cast<char*>(p.y[band.first + i]) + row * size);
  }
}

} // namespace mlxrs::matmul
