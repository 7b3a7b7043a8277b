// Products of activations with the rows of a weight matrix, y = x w^T, for 16-bit and packed weights. Products of f32 with f32 are
// cblas_sgemm's (sgemm.cpp). docs/cpu-matmul.md describes the design.
//
// matmul.cpp has the table that says which kernel multiplies. Files are named by the numbers that are multiplied and, at the end, by the
// instruction set that they are compiled for:
//   bf16_tiles_*     weights rounded to bf16, on AMX tiles
//   bf16_pairs_*     weights rounded to bf16, by VDPBF16PS
//   int8_*, int16_*  whole numbers: codes of packed weights, and x as whole numbers of 16 bits, in two planes of bytes for int8
//   fp8_*            codes of E4M3, widened to f32
//   f32_panels       weights dequantised to f32, multiplied by sgemm's kernels
//   dequantize_*     rows of weights written out as f32 or bf16
//
// Sums are f32 and the result is rounded once, to x's type. An element of y depends on its row of x, its row of w, the instruction set,
// and the line of the table: sums have a fixed order, whatever else is in the call and whichever thread computes it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mlxrs::matmul {

enum class Float { f32, f16, bf16 };

// How the elements of a row are written.
enum class Coding {
  f32,
  f16,
  bf16,
  // q * scale + bias, with `bits` for each q
  affine,
  // 4-bit floating point (E2M1) times a scale: E8M0 for mxfp4, E4M3 for nvfp4
  mxfp4,
  nvfp4,
  // E4M3 times a scale in E8M0
  mxfp8,
};

// A matrix n x k, one row after the other. Packed elements are a stream of bits, the first in the lowest.
struct Weights {
  Coding coding;
  int bits, group;
  long n, k;
  const void* data;
  // One for each group of a row, n x k / group: of `scale_type` for affine, bytes for the others, which have no biases.
  Float scale_type;
  const void* scales;
  const void* biases;

  long row_bytes() const {
    return k * bits / 8;
  }
  const char* row(long i) const {
    return static_cast<const char*>(data) + i * row_bytes();
  }
  long groups() const {
    return group > 0 ? k / group : 0;
  }
};

// Row i of x begins at x[i] and row i of y at y[i]; both are contiguous and of one type.
struct Product {
  Float type;
  long m;
  const void* const* x;
  void* const* y;
  // Whether y is read at once: it should stay in the caches.
  bool is_read = false;
};

// Rows of w, one behind the other, each element rounded to `type` once.
void write_rows(const Weights& w, const std::vector<long>& rows, Float type, void* y);

// On the threads of threads.h. Throws std::bad_alloc, and what isa() throws.
void multiply(const Product& p, const Weights& w);

// The same for several matrices, whose elements are written alike and whose rows are equally long, with one x: each has its y, the
// product's own does not count.
struct Part {
  Weights w;
  void* const* y;
};
void multiply_parts(const Product& p, std::span<const Part> parts);

// y = join(x aᵀ, x bᵀ), for n elements at a time. The products are rounded to x's type as those of `multiply` are, but are never in
// memory as a whole. a and b have one size and one coding.
using Join = void (*)(const void* a, const void* b, long n, void* y);
void multiply_joined(const Product& p, const Weights& a, const Weights& b, Join join);

} // namespace mlxrs::matmul
