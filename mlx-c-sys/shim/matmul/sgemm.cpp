// cblas_sgemm for MLX's CPU back end, in place of the reference BLAS in MLX's wheel.
//
// MLX calls CBLAS through the dynamic linker, which searches a symbol in the program, then in its libraries, then in
// their libraries. libmlxc is a library of the program, and the BLAS is one of libmlx, so this definition is found
// first. Other BLAS functions remain those of MLX's BLAS.
//
//   MLX_CPU_KERNELS=off                    MLX's own BLAS, and its own graphs (see ops/form.cpp)
//   MLX_CPU_ISA=NAME                       the instruction set, in place of the best one (see isa.h)
//   MLX_CPU_THREADS=N                      see threads.h
//
// An invalid argument or setting throws a C++ exception, which MLX reports as the error of the evaluation.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "core/settings.h"
#include "runtime/isa.h"
#include "runtime/memory.h"
#include "runtime/threads.h"
#include "sgemm/product.h"

namespace {

using mlxrs::for_all;
using mlxrs::for_task;
using mlxrs::Threads;
using namespace mlxrs::sgemm;

// The values of CBLAS's enums.
enum : int { row_major = 101, col_major = 102, no_trans = 111, trans = 112, conj_trans = 113 };

using Sgemm = void (*)(
    int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);

// With fewer multiplications than this, dividing the product among threads takes longer than computing it.
constexpr double worth_sharing = 100e3;
// The rows of A that are multiplied with a panel of B at a time. Their partial sums stay in L2 until the next block of
// k.
constexpr long band_rows = 96;
// The part of A that is packed at a time, in floats.
constexpr long packed_floats = 4 << 20;

// The BLAS of MLX if our kernels are off, else null.
Sgemm choose_other() {
  if (mlxrs::kernels_wanted()) {
    return nullptr;
  }
  void* found = dlsym(RTLD_NEXT, "cblas_sgemm");
  if (found == nullptr) {
    throw std::runtime_error("MLX_CPU_KERNELS=off needs a BLAS, and no library after libmlxc has cblas_sgemm");
  }
  return reinterpret_cast<Sgemm>(found);
}

// Divides [0, n) into at most `pieces` ranges whose lengths are multiples of `unit`, and calls body(begin, end).
template <typename Body>
void share(long n, long unit, long pieces, const Body& body) {
  long units = (n + unit - 1) / unit;
  pieces = std::clamp(pieces, 1L, units);
  long size = (units + pieces - 1) / pieces * unit;
  auto piece = [&](uint32_t i) { body(i * size, std::min(n, (i + 1) * size)); };
  Threads::shared().each(static_cast<uint32_t>((n + size - 1) / size), piece);
}

// Calls body(i) for each i in [0, n). The calls have `work` multiplications in total.
template <typename Body>
void each(long n, double work, const Body& body) {
  if (work < worth_sharing) {
    for (long i = 0; i < n; i++) {
      body(i);
    }
  } else {
    Threads::shared().each(static_cast<uint32_t>(n), body);
  }
}

// The pieces that `work` multiplications are divided into. There are more pieces than threads, so that a late or slow
// thread costs little time.
long pieces_of(double work) {
  int threads = Threads::shared().count();
  return threads < 2 || work < worth_sharing ? 1 : std::min<long>(4 * threads, static_cast<long>(work / 32e3));
}

// Computes rows [first, end) of C: all threads pack the rows of A, then each thread packs columns of B and multiplies.
void multiply_packed(const Product& p, const Kernels& kernels, long first, long end) {
  double work = static_cast<double>(end - first) * p.n * p.k;
  long bands = (end - first + band_rows - 1) / band_rows, band_size = kernels.rows_size(p, std::min(band_rows, end - first));
  float* rows = for_all.of<float>(bands * band_size);
  auto row_of = [&](long band) { return std::min(end, first + band * band_rows); };
  each(bands, work, [&](long i) { kernels.pack_rows(p, row_of(i), row_of(i + 1), rows + i * band_size); });
  // A task is a panel of B. If there are too few panels, a task is a panel and some of the bands.
  long panels = (p.n + kernels.tile_cols - 1) / kernels.tile_cols;
  long parts = std::clamp(4L * Threads::shared().count() / panels, 1L, bands), most = (bands + parts - 1) / parts;
  long cols_size = kernels.cols_size(p, kernels.tile_cols), open_size = kernels.open_size(p, std::min(band_rows, end - first));
  each(panels * parts, work, [&](long i) {
    long col = i / parts * kernels.tile_cols, col_end = std::min(p.n, col + kernels.tile_cols), part = i % parts;
    float *cols = for_task.of<float>(cols_size + open_size), *open = cols + cols_size;
    kernels.pack_cols(p, col, col_end, cols);
    for (long at = part * most; at < std::min(bands, (part + 1) * most); at++) {
      kernels.packed(p, {row_of(at), row_of(at + 1), col, col_end}, rows + at * band_size, cols, open, {nullptr, 0});
    }
  });
}

void multiply(Product p, const Kernels& kernels) {
  if (p.n < p.m && p.n <= (p.a_k == 1 ? max_direct_rows : p.a_row == 1 ? max_stream_rows : 0)) {
    // Computes the transposed product. Its elements have the same bits.
    p = {p.n, p.m, p.k, p.b, p.b_col, p.b_k, p.a, p.a_row, p.a_k, p.c, p.c_col, p.c_row, p.alpha, p.beta};
  }
  double work = static_cast<double>(p.m) * p.n * p.k;
  long pieces = pieces_of(work);
  if (p.b_k == 1 && p.m <= max_direct_rows) {
    float* rows = for_all.of<float>(kernels.direct_size(p));
    kernels.direct_pack(p, rows);
    return share(p.n, kernels.direct_cols(p), pieces, [&](long begin, long end) { kernels.direct(p, rows, begin, end); });
  }
  if (p.b_col == 1 && p.m <= max_stream_rows) {
    return share(p.n, 64, pieces, [&](long begin, long end) { kernels.stream(p, begin, end); });
  }
  long most = std::max(packed_floats / p.k / band_rows, 1L) * band_rows;
  for (long first = 0; first < p.m; first += most) {
    multiply_packed(p, kernels, first, std::min(p.m, first + most));
  }
}

void check(bool right, const std::string& what) {
  if (!right) {
    throw std::invalid_argument("cblas_sgemm: " + what);
  }
}

} // namespace

namespace mlxrs::sgemm {

const Kernels& chosen() {
  switch (isa()) {
    case Isa::portable:
      return portable();
    case Isa::avx2:
      return *avx2();
    default:
      return *avx512();
  }
}

} // namespace mlxrs::sgemm

extern "C" __attribute__((visibility("default"))) void cblas_sgemm(
    int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
    int ldb, float beta, float* c, int ldc) {
  static const Sgemm other = choose_other();
  if (other != nullptr) {
    return other(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
  static const Kernels& kernels = chosen();
  check(order == row_major || order == col_major, "order must be 101 or 102, given " + std::to_string(order));
  for (int t : {trans_a, trans_b}) {
    check(t >= no_trans && t <= conj_trans, "a transpose must be 111, 112 or 113, given " + std::to_string(t));
  }
  for (int size : {m, n, k}) {
    check(size >= 0, "a size must not be negative, given " + std::to_string(size));
  }
  if (m == 0 || n == 0) {
    return;
  }
  // The strides of A along m and k, of B along n and k, and of C along m and n, in row-major order. Column-major order
  // exchanges the two.
  bool by_rows = order == row_major;
  bool a_rows = (trans_a == no_trans) == by_rows, b_rows = (trans_b == no_trans) == by_rows;
  Product p{m, n, k, a, a_rows ? lda : 1, a_rows ? 1 : lda, b, b_rows ? 1 : ldb, b_rows ? ldb : 1,
            c, by_rows ? ldc : 1, by_rows ? 1 : ldc, alpha, beta};
  if (k == 0 || alpha == 0) {
    for (long i = 0; i < m; i++) {
      for (long j = 0; j < n; j++) {
        float& x = c[i * p.c_row + j * p.c_col];
        x = beta == 0 ? 0 : beta * x;
      }
    }
    return;
  }
  multiply(p, kernels);
}
