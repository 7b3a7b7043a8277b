// The division of an integer product among tasks.
#include "int_kernels.h"

#include <algorithm>

#include "job.h"

namespace mlxrs::matmul {

void by_int_kernels(const Product& p, const Job& job, const IntKernels& kernels) {
  const Weights& w = job.w();
  long block = std::min(p.m, kernels.block), blocks = (p.m + block - 1) / block, size = kernels.packed_size(w, block);
  char* packed = for_all.of<char>(blocks * size);
  each(blocks, p.m * w.k, [&](uint32_t i) { kernels.pack(p, w, i * block, block, packed + i * size); });
  long parts = p.m <= memory_bound_rows ? 1 : 4;
  long most = most_joined(p, job, p.m, kernels.unit, round_up(job.n(), kernels.unit));
  share_rows(p, job, kernels.unit, parts, most, [&](long row, long row_end) {
    void* scratch = for_task.of<char>(kernels.scratch_size(p, w));
    each_matrix(p, job, {0, p.m}, row, row_end, [&](const Product& p, const Weights& w, long row, long row_end) {
      kernels.rows(p, w, packed, row, row_end, scratch);
    });
  });
}

} // namespace mlxrs::matmul
