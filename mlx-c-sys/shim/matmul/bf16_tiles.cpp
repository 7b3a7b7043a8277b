// The division of a product among tasks for the kernels of bf16_tiles.h.
#include "bf16_tiles.h"

#include <algorithm>

#include "job.h"

namespace mlxrs::matmul {

void by_bf16_tiles(const Product& p, const Job& job, const Bf16Tiles& tiles, const Dequantizer& dequantizer) {
  const Weights& w = job.w();
  int dealt = dequantizer.dealt(w);
  // With few rows of x, a task is a long range of the weights. With many rows, a task is a band of x, which stays in
  // the core's L2, and all weights.
  const bool few = p.m <= memory_bound_rows;
  const long parts = few || Bf16Tiles::is_large(p.m, w.k) ? 1 : 4, all = round_up(job.n(), Bf16Tiles::unit);
  const long band = few ? p.m : Bf16Tiles::band(p.m, w.k), most = few ? all : std::min(all, Bf16Tiles::most(p.m, w.k));
  // One thread packs the blocks of a band. Both loops have the same order of tasks, so it is likely the thread that
  // multiplies the band.
  const long blocks = (p.m + 15) / 16, together = band == p.m ? 1 : std::max(1L, band / 16 / threads_of((p.m + band - 1) / band));
  const long steps = Bf16Tiles::steps(w.k, dealt);
  auto* packed = for_all.of<uint16_t>(Bf16Tiles::packed_size(p.m, steps));
  each((blocks + together - 1) / together, p.m * w.k, [&](uint32_t i) {
    for (long block = i * together; block < std::min(blocks, (i + 1) * together); block++) {
      tiles.pack(p, w.k, dealt, block, packed);
    }
  });
  share_bands(p, job, band, Bf16Tiles::unit, parts, most_joined(p, job, band, Bf16Tiles::unit, most), [&](const Band& b, long row, long row_end) {
    each_matrix(p, job, b, row, row_end, [&](const Product& q, const Weights& w, long row, long row_end) {
      void* scratch = for_task.of<char>(tiles.scratch_size(q, w, dequantizer, row_end - row));
      tiles.rows(q, w, dequantizer, packed + Bf16Tiles::packed_size(b.first, steps), row, row_end, scratch);
    });
  });
}

} // namespace mlxrs::matmul
