// cblas_sgemm for MLX's CPU back end, in place of the reference BLAS that MLX's wheel brings.
//
// MLX calls CBLAS through the dynamic linker, which looks for a name in the program, then in its libraries, then in
// theirs. libmlxc is a library of the program and the BLAS one of libmlx, so this definition comes first. Other BLAS
// functions are not defined here and stay as they are.
//
//   MLX_CPU_KERNELS=off                    the BLAS that MLX brought, and its own graphs (see fused.cpp)
//   MLX_CPU_ISA=NAME                       the instruction set, instead of the machine's best (see isa.h)
//   MLX_CPU_THREADS=N                      see threads.h
//
// A wrong argument or setting is a C++ exception, which MLX reports as the error of the evaluation.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "isa.h"
#include "settings.h"
#include "sgemm/product.h"
#include "threads.h"

namespace {

using mlxrs::Threads;
using namespace mlxrs::sgemm;

// The values of CBLAS's enums.
enum : int { row_major = 101, col_major = 102, no_trans = 111, trans = 112, conj_trans = 113 };

using Sgemm = void (*)(
    int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);

// Products with fewer multiplications than this take less time than sharing them out.
constexpr double worth_sharing = 100e3;
// A part of a packed product: its rows of A, which are all packed at once, and that copy's size in floats.
constexpr long packed_rows = 192, packed_floats = 1 << 20;

// The BLAS that MLX brought when the kernels are off, else null.
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

// Memory of the thread, kept for its next product.
float* workspace(size_t floats) {
  struct Free {
    void operator()(float* p) const {
      ::operator delete[](p, std::align_val_t(64));
    }
  };
  thread_local std::unique_ptr<float[], Free> memory;
  thread_local size_t size = 0;
  if (floats > size) {
    size = 0;
    memory.reset();
    memory.reset(static_cast<float*>(::operator new[](floats * sizeof(float), std::align_val_t(64))));
    size = floats;
  }
  return memory.get();
}

// Cuts [0, n) into at most `pieces` of a multiple of `unit`, and calls body(begin, end).
template <typename Body>
void share(long n, long unit, long pieces, const Body& body) {
  long units = (n + unit - 1) / unit;
  pieces = std::clamp(pieces, 1L, units);
  long size = (units + pieces - 1) / pieces * unit;
  auto piece = [&](uint32_t i) { body(i * size, std::min(n, (i + 1) * size)); };
  Threads::shared().each(static_cast<uint32_t>((n + size - 1) / size), piece);
}

// How many pieces make `work` multiplications, so that a thread that comes late or is slow costs little.
long pieces_of(double work) {
  int threads = Threads::shared().count();
  return threads < 2 || work < worth_sharing ? 1 : std::min<long>(4 * threads, static_cast<long>(work / 32e3));
}

void multiply(Product p, const Kernels& kernels) {
  if (p.n < p.m && p.n <= (p.a_k == 1 ? max_direct_rows : p.a_row == 1 ? max_stream_rows : 0)) {
    // The same product turned over: a row times a column is a column times a row, to the bit.
    p = {p.n, p.m, p.k, p.b, p.b_col, p.b_k, p.a, p.a_row, p.a_k, p.c, p.c_col, p.c_row, p.alpha, p.beta};
  }
  double work = static_cast<double>(p.m) * p.n * p.k;
  long pieces = pieces_of(work);
  if (p.b_k == 1 && p.m <= max_direct_rows) {
    float* rows = workspace(kernels.direct_size(p));
    kernels.direct_pack(p, rows);
    return share(p.n, kernels.tile_cols, pieces, [&](long begin, long end) { kernels.direct(p, rows, begin, end); });
  }
  if (p.b_col == 1 && p.m <= max_stream_rows) {
    return share(p.n, 64, pieces, [&](long begin, long end) { kernels.stream(p, begin, end); });
  }
  long most = std::clamp(packed_floats / p.k, max_direct_rows, packed_rows);
  long bands = (p.m + most - 1) / most;
  long height = ((p.m + bands - 1) / bands + kernels.tile_rows - 1) / kernels.tile_rows * kernels.tile_rows;
  bands = (p.m + height - 1) / height;
  // Every part packs its rows of A for itself, so it should be wide.
  long unit = 8 * kernels.tile_cols;
  long units = (p.n + unit - 1) / unit;
  long across = std::clamp((pieces + bands - 1) / bands, 1L, units);
  long width = (units + across - 1) / across * unit;
  across = (p.n + width - 1) / width;
  Threads::shared().each(static_cast<uint32_t>(bands * across), [&](uint32_t i) {
    long row = i / across * height, col = i % across * width;
    Part part{row, std::min(p.m, row + height), col, std::min(p.n, col + width)};
    long size = kernels.rows_size(p, part);
    float* rows = workspace(size + kernels.packed_size(p, part));
    kernels.pack_rows(p, part, rows);
    kernels.packed(p, part, rows, rows + size);
  });
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
  // Strides along m, k of A, along n, k of B, and along m, n of C, as for rows; by columns the two change places.
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
