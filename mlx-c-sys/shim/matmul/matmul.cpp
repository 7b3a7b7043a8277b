// The table that decides which kernel multiplies.
#include "matmul.h"

#include <limits>

#include "bf16_pairs.h"
#include "bf16_tiles.h"
#include "f32_panels.h"
#include "int_kernels.h"
#include "job.h"
#include "matmul/sgemm/product.h"
#include "runtime/isa.h"

namespace mlxrs::matmul {
namespace {

// Sets of codings and of types of x, as bit masks.
template <typename... T>
constexpr unsigned set(T... items) {
  return ((1u << static_cast<int>(items)) | ...);
}
constexpr unsigned affine = set(Coding::affine), mxfp4 = set(Coding::mxfp4), nvfp4 = set(Coding::nvfp4), mxfp8 = set(Coding::mxfp8),
                   bf16 = set(Coding::bf16), packed = affine | mxfp4 | nvfp4 | mxfp8;
constexpr unsigned x_bf16 = set(Float::bf16), x_f16 = set(Float::f16), x_16 = x_bf16 | x_f16;
constexpr long any = std::numeric_limits<long>::max();

template <const IntKernels* KERNELS()>
void by_int(const Product& p, const Job& job) {
  by_int_kernels(p, job, *KERNELS());
}
void by_tiles(const Product& p, const Job& job) {
  by_bf16_tiles(p, job, *bf16_tiles_amx(), dequantizer_of(isa()));
}
void by_pairs(const Product& p, const Job& job) {
  by_bf16_pairs(p, job, *bf16_pairs_avx512bf16(), dequantizer_of(isa()));
}
void by_f32(const Product& p, const Job& job) {
  by_f32_panels(p, job, sgemm::chosen(), dequantizer_of(isa()));
}

// A line of the table.
struct Rule {
  // The smallest instruction set that the kernel needs. Larger instruction sets include smaller ones.
  Isa isa;
  unsigned codings, x;
  // The largest number of rows of x.
  long rows;
  // The weights' group size and k must be multiples of these.
  long group, k;
  void (*multiply)(const Product& p, const Job& job);

  bool fits(Isa machine, const Product& p, const Weights& w) const {
    return machine >= isa && (codings & set(w.coding)) != 0 && (x & set(p.type)) != 0 && p.m <= rows && w.group % group == 0 &&
        w.k % k == 0;
  }
};

// The first line that fits decides. If none fits, weights are converted to f32 and multiplied by sgemm's kernels.
// avx512 without VNNI uses the lines of avx2.
constexpr Rule table[] = {
    // ISA            coding                  x     rows group  k  kernel
    {Isa::avx512vnni, affine | mxfp4 | nvfp4, x_16,   4,   1,  32, by_int<int8_few_rows_avx512vnni>},
    {Isa::avx512vnni, mxfp8,                  x_16,   4,   1,   1, by_int<fp8_few_rows_avx512vnni>},
    {Isa::amx,        affine,                 x_16,   8,  64,   1, by_int<int8_amx>},
    {Isa::amx,        packed | bf16,          x_bf16, any, 1,   1, by_tiles},
    {Isa::avx512vnni, affine | mxfp4,         x_16,   8,   1,   1, by_int<int8_8_rows_avx512vnni>},
    {Isa::avx512vnni, affine | mxfp4,         x_16,   any, 1,   1, by_int<int8_many_rows_avx512vnni>},
    {Isa::avx512bf16, packed | bf16,          x_bf16, any, 1,   1, by_pairs},
    {Isa::avx2,       affine | mxfp4,         x_16,   4,   1,   1, by_int<int16_few_rows_avx2>},
    {Isa::avx2,       affine | mxfp4,         x_16,   any, 1,   1, by_int<int16_many_rows_avx2>},
    {Isa::avx2,       mxfp8,                  x_16,   4,   1,   1, by_int<fp8_few_rows_avx2>},
#ifdef __aarch64__
    {Isa::portable,   affine | mxfp4,         x_16,   any, 1,   1, by_int<int16_neon>},
#endif
};

void multiply_by(const Product& p, const Job& job) {
  if (p.m == 0 || job.n() == 0) {
    return;
  }
  const Isa machine = isa();
  for (const Rule& line : table) {
    if (line.fits(machine, p, job.w())) {
      return line.multiply(p, job);
    }
  }
  by_f32(p, job);
}

} // namespace

void multiply(const Product& p, const Weights& w) {
  const Part part{w, p.y};
  multiply_by(p, {{&part, 1}, nullptr});
}

void multiply_parts(const Product& p, std::span<const Part> parts) {
  multiply_by(p, {parts, nullptr});
}

void multiply_joined(const Product& p, const Weights& a, const Weights& b, Join join) {
  const Part parts[] = {{a, p.y}, {b, p.y}};
  multiply_by(p, {parts, join});
}

} // namespace mlxrs::matmul
