// Products of activations with the rows of a weight matrix, y = x w^T, for 16-bit and packed weights. cblas_sgemm
// (sgemm.cpp) multiplies f32 with f32. docs/design/cpu-kernels.md describes the design.
//
// The table in matmul.cpp decides which kernel multiplies. A file's name says which numbers are multiplied and, at its
// end, the instruction set:
//   bf16_tiles_*     weights rounded to bf16, on AMX tiles
//   bf16_pairs_*     weights rounded to bf16, by VDPBF16PS
//   int8_*, int16_*  integers: the codes of packed weights, and x as 16-bit integers, which int8 splits into two planes
//                    of bytes
//   fp8_*            e4m3 codes, widened to f32
//   f32_panels       weights dequantised to f32, multiplied by sgemm's kernels
//   dequantize_*     conversion of rows of weights to f32 or bf16
//
// Sums are f32, and the result is rounded once, to x's type. An element of y depends on its row of x, its row of w, the
// instruction set, and the line of the table. The order of a sum does not depend on the other rows or on threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mlxrs::matmul {

enum class Float { f32, f16, bf16 };

// How the elements of a row are stored.
enum class Coding {
  f32,
  f16,
  bf16,
  // q * scale + bias, with `bits` bits for each code q
  affine,
  // e2m1 (4-bit floats) times a scale: e8m0 for mxfp4, e4m3 for nvfp4
  mxfp4,
  nvfp4,
  // e4m3 times an e8m0 scale
  mxfp8,
};

// A matrix [n, k], stored row by row. Packed elements are a bit stream, with the first element in the lowest bits.
struct Weights {
  Coding coding;
  int bits, group;
  long n, k;
  const void* data;
  // One scale (and bias) for each group of a row: [n, k / group]. Affine codes have scales and biases of `scale_type`;
  // the others have scales of one byte and no biases.
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

// Row i of x begins at x[i], and row i of y at y[i]. Rows are contiguous, and all have type `type`.
struct Product {
  Float type;
  long m;
  const void* const* x;
  void* const* y;
  // Whether y is read next, so that it should stay in the caches.
  bool is_read = false;
};

// Writes the given rows of w one after the other, each element rounded once to `type`.
void write_rows(const Weights& w, const std::vector<long>& rows, Float type, void* y);

// Multiplies on the threads of threads.h. Throws std::bad_alloc, and the errors of isa().
void multiply(const Product& p, const Weights& w);

// Multiplies one x with several matrices that have the same coding and k. Each has its own y; p.y is not used.
struct Part {
  Weights w;
  void* const* y;
};
void multiply_parts(const Product& p, std::span<const Part> parts);

// y = join(x a^T, x b^T), n elements at a time. The products are rounded to x's type, as `multiply` rounds them, but
// are never whole in memory. a and b have the same size and coding.
using Join = void (*)(const void* a, const void* b, long n, void* y);
void multiply_joined(const Product& p, const Weights& a, const Weights& b, Join join);

} // namespace mlxrs::matmul
