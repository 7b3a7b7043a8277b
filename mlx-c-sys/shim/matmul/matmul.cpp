#include "matmul.h"

#include <algorithm>

#include "../isa.h"
#include "../sgemm/product.h"
#include "amx.h"
#include "expand.h"
#include "job.h"
#include "pairs.h"
#include "panels.h"
#include "whole.h"

namespace mlxrs::matmul {
namespace {

void by_tiles(const Product& p, const Job& job, const Amx& amx, const Expander& expander) {
  const Weights& w = job.w();
  int dealt = expander.dealt(w);
  // A few rows of x take as long as reading the weights: in long pieces, each of which one core has fetched. Of many, each core takes
  // a band, which stays in its second cache, with as many weights as there are.
  const bool few = p.m <= Amx::some;
  const long parts = few || Amx::is_large(p.m, w.k) ? 1 : 4, all = round_up(job.n(), Amx::unit);
  const long band = few ? p.m : Amx::band(p.m, w.k), most = few ? all : std::min(all, Amx::most(p.m, w.k));
  // A band is packed by whom it will likely be multiplied by: who comes first here comes first there.
  const long blocks = (p.m + 15) / 16, together = band == p.m ? 1 : std::max(1L, band / 16 / threads_of((p.m + band - 1) / band));
  const long steps = Amx::steps(w.k, dealt);
  auto* packed = for_all.of<uint16_t>(Amx::packed_size(p.m, steps));
  each((blocks + together - 1) / together, p.m * w.k, [&](uint32_t i) {
    for (long block = i * together; block < std::min(blocks, (i + 1) * together); block++) {
      amx.pack(p, w.k, dealt, block, packed);
    }
  });
  share_bands(p, job, band, Amx::unit, parts, most_joined(p, job, band, Amx::unit, most), [&](const Band& b, long row, long row_end) {
    each_matrix(p, job, b, row, row_end, [&](const Product& q, const Weights& w, long row, long row_end) {
      void* scratch = for_task.of<char>(amx.scratch_size(q, w, expander, row_end - row));
      amx.rows(q, w, expander, packed + Amx::packed_size(b.first, steps), row, row_end, scratch);
    });
  });
}

// In whole numbers.
void by_whole_numbers(const Product& p, const Job& job, const Whole& kernels) {
  const Weights& w = job.w();
  long block = std::min(p.m, kernels.block), blocks = (p.m + block - 1) / block, size = kernels.packed_size(w, block);
  char* packed = for_all.of<char>(blocks * size);
  each(blocks, p.m * w.k, [&](uint32_t i) { kernels.pack(p, w, i * block, block, packed + i * size); });
  long parts = p.m <= Amx::some ? 1 : 4;
  long most = most_joined(p, job, p.m, kernels.unit, round_up(job.n(), kernels.unit));
  share_rows(p, job, kernels.unit, parts, most, [&](long row, long row_end) {
    void* scratch = for_task.of<char>(kernels.scratch_size(p, w));
    each_matrix(p, job, {0, p.m}, row, row_end, [&](const Product& p, const Weights& w, long row, long row_end) {
      kernels.rows(p, w, packed, row, row_end, scratch);
    });
  });
}

const Whole* small_floats_of(Isa machine) {
  switch (machine) {
    case Isa::portable:
      return nullptr;
    case Isa::avx2:
    case Isa::avx512:
      return small_floats_avx2();
    default:
      return small_floats_avx512();
  }
}

// The kernels for these products in whole numbers, or few of E4M3; null where others are faster.
const Whole* whole_of(Isa machine, const Product& p, const Weights& w) {
  if (!Whole::takes(p, w)) {
    return nullptr;
  }
  const bool few = p.m <= Whole::few, least = p.m <= Whole::few_beside_tiles;
  if (w.coding == Coding::mxfp8) {
    return (machine == Isa::amx ? least : few) ? small_floats_of(machine) : nullptr;
  }
  if (!Whole::takes_many(w) && (!few || machine == Isa::portable)) {
    return nullptr;
  }
  switch (machine) {
    case Isa::portable:
      return whole_neon();
    case Isa::avx2:
    case Isa::avx512:
      return least || !Whole::takes_many(w) ? whole_avx2() : whole_tiles_avx2();
    case Isa::avx512vnni:
    case Isa::avx512bf16:
      return least || !Whole::takes_many(w) ? whole_vnni() : whole_tiles_vnni(p.m);
    case Isa::amx:
      if (least) {
        return whole_vnni();
      }
      if (few && Whole::takes_steps(w)) {
        return whole_amx();
      }
      // Tiles of bf16 do not have f16's precision.
      return p.type == Float::f16 && Whole::takes_many(w) ? whole_tiles_vnni(p.m) : nullptr;
  }
  return nullptr;
}

void multiply_by(const Product& p, const Job& job) {
  const Weights& w = job.w();
  if (p.m == 0 || job.n() == 0) {
    return;
  }
  Isa machine = isa();
  const Expander& expander = expander_of(machine);
  if (const Whole* whole = whole_of(machine, p, w)) {
    return by_whole_numbers(p, job, *whole);
  }
  bool is_bf16 = p.type == Float::bf16 && w.coding != Coding::f32 && w.coding != Coding::f16;
  if (is_bf16 && machine == Isa::amx) {
    return by_tiles(p, job, *amx(), expander);
  }
  if (is_bf16 && machine == Isa::avx512bf16) {
    return by_pairs(p, job, *pairs(), expander);
  }
  by_panels(p, job, sgemm::chosen(), expander);
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
