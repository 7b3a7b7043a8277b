// The division of a product among the kernels of bf16_pairs.h: weights that are transposed in registers (at most 4 rows
// of x), read in place (at most 64), or converted to panels of bf16.
#include "bf16_pairs.h"

#include <cstring>

#include "convert.h"
#include "job.h"

namespace mlxrs::matmul {
namespace {

// A panel of weights in bf16: `panel` rows with `part` elements of k at a time, which fit in L1.
constexpr long panel = 4 * Bf16Pairs::unit, part = 256;
// Up to this many rows of x, dense weights are read in place, because they are read only a few times.
constexpr long few_dense = 64;

// The distance between rows that are multiplied together. Each of the `side_by_side` rows is then in a long contiguous
// range of memory of its own. The distance is odd: rows are often a fraction of a page long, and rows an even distance
// apart would fall into the same cache sets. It is chosen so that no short ranges remain.
long far_apart(long rows, long side_by_side) {
  constexpr long most = 63;
  const long all = rows / side_by_side, times = (all + most - 1) / most, far = (all + times - 1) / times;
  return far % 2 != 0 ? far : far / 2 | 1;
}

// The operands that the functions of one call to by_bf16_pairs share.
struct Call {
  const Bf16Pairs& kernels;
  const Dequantizer& dequantizer;
  // Packed x.
  const char* x;
  long block_size, unit_k, pairs;
};

// Computes y for dense weights from row `row` on, a block of rows at a time, transposed in registers. For at most
// Bf16Pairs::few rows of x. Returns the first row that remains.
long by_transposing(const Call& call, const Product& p, const Weights& w, long row, long row_end) {
  constexpr long lanes = Bf16Pairs::lanes_of_few;
  while (row_end - row >= lanes) {
    const long far = far_apart(row_end - row, lanes), rows = far * lanes;
    float *sums = for_task.of<float>((rows + lanes) * p.m), *some = sums + rows * p.m;
    for (long i = 0; i < far; i++) {
      call.kernels.multiply_few({w.row(row + i), far * w.row_bytes(), p.x, p.m, call.pairs, some});
      for (long j = 0; j < p.m * lanes; j++) {
        sums[j * far + i] = some[j];
      }
    }
    for (long j = 0; j < p.m; j++) {
      to_bf16(sums + j * rows, rows, static_cast<uint16_t*>(p.y[j]) + row);
    }
    row += rows;
  }
  return row;
}

// Computes y for dense weights that are read in place, with packed x. Returns the first row that remains.
long in_place(const Call& call, const Product& p, const Weights& w, long row, long row_end) {
  const long distance = round_up(p.m, Bf16Pairs::lanes(p.m));
  while (row_end - row >= Bf16Pairs::unit) {
    const long far = far_apart(row_end - row, Bf16Pairs::unit), rows = far * Bf16Pairs::unit;
    float* sums = for_task.of<float>(round_up(rows, 16) * distance);
    for (long i = 0; i < far; i++) {
      call.kernels.multiply({w.row(row + i), far * w.row_bytes(), Bf16Pairs::unit, call.x, call.block_size, p.m, call.pairs,
                             sums + i * distance, far * distance, true, nullptr, 0});
    }
    call.kernels.write(sums, distance, p.m, rows, row, p.y);
    row += rows;
  }
  return row;
}

// Writes elements [k, k_end) of a panel's rows to `to`, in bf16. The last row is repeated up to a whole unit of rows.
void write_panel(const Call& call, const Panel& from, long k, long k_end, uint16_t* to) {
  const Weights& w = from.w;
  if (w.coding != Coding::bf16) {
    call.dequantizer.to_bf16(from, k, k_end, to, part);
  }
  for (long r = 0; r < round_up(from.rows, Bf16Pairs::unit); r++, to += part) {
    if (r >= from.rows) {
      std::memcpy(to, to - part, part * sizeof *to);
    } else if (w.coding == Coding::bf16) {
      std::memcpy(to, w.row(from.row + r) + k * sizeof *to, (k_end - k) * sizeof *to);
      if (k_end % 2 != 0) {
        to[k_end - k] = 0;
      }
    }
  }
}

// Computes y for weights of any coding, converted to panels of bf16.
void by_written_panels(const Call& call, const Product& p, const Weights& w, long row, long row_end) {
  const long distance = round_up(p.m, Bf16Pairs::lanes(p.m)), groups = round_up(panel * w.groups(), 16);
  float* sums = for_task.of<float>(panel * distance + 2 * groups + panel * part / 2);
  float *scales = sums + panel * distance, *biases = scales + groups;
  auto* out = reinterpret_cast<uint16_t*>(biases + groups);
  // The bytes of the next panel that are prefetched in each step, while this panel is multiplied with all of x.
  const long fetch_step = std::max(1L, 64L * w.bits / 16 / ((p.m + 31) / 32));
  for (; row < row_end; row += panel) {
    const long rows = std::min(panel, row_end - row);
    const bool has_next = row_end - row >= 2 * panel;
    dequantize_groups(call.dequantizer, w, row, rows, scales, biases);
    const Panel from{w, row, rows, 0, w.groups(), scales, biases, nullptr};
    PairTiles tiles{out, part * static_cast<long>(sizeof *out), round_up(rows, Bf16Pairs::unit), call.x, call.block_size, p.m, 0, sums, distance, true,
                    has_next ? w.row(row + rows) : call.x, has_next ? fetch_step : 0};
    for (long k = 0; k < w.k; k += part) {
      const long k_end = std::min(k + part, w.k);
      write_panel(call, from, k, k_end, out);
      tiles.pairs = round_up(k_end - k, call.unit_k) / 2;
      call.kernels.multiply(tiles);
      tiles.x = static_cast<const char*>(tiles.x) + Bf16Pairs::block_size(p.m, tiles.pairs);
      tiles.fetch += has_next ? rows * (k_end - k) * w.bits / 8 : 0;
      tiles.first = false;
    }
    call.kernels.write(sums, distance, p.m, rows, row, p.y);
  }
}

} // namespace

void by_bf16_pairs(const Product& p, const Job& job, const Bf16Pairs& kernels, const Dequantizer& dequantizer) {
  const Weights& w = job.w();
  const int dealt = dequantizer.dealt(w);
  const long unit_k = dealt > 1 ? 64 : 2, pairs = round_up(w.k, unit_k) / 2;
  const long lanes = Bf16Pairs::lanes(p.m), blocks = (p.m + lanes - 1) / lanes, size = Bf16Pairs::block_size(p.m, pairs);
  const bool where_they_are = w.coding == Coding::bf16 && w.k % 2 == 0 && p.m <= few_dense, is_turned = where_they_are && p.m <= Bf16Pairs::few;
  const long unit = is_turned ? Bf16Pairs::lanes_of_few : Bf16Pairs::unit;
  char* x = for_all.of<char>(blocks * size);
  // If all weights are transposed, x is read in place and is not packed.
  if (!is_turned || std::any_of(job.parts.begin(), job.parts.end(), [&](const Part& part) { return part.w.n % unit != 0; })) {
    each(blocks, p.m * w.k, [&](uint32_t i) {
      kernels.pack(p.x + i * lanes, std::min(lanes, p.m - i * lanes), w.k, dealt, lanes, pairs, x + i * size);
    });
  }
  const Call call{kernels, dequantizer, x, size, unit_k, pairs};
  const long parts = p.m <= memory_bound_rows ? 1 : 4;
  const long most = most_joined(p, job, p.m, unit, round_up(job.n(), unit));
  share_rows(p, job, unit, parts, most, [&](long row, long row_end) {
    each_matrix(p, job, {0, p.m}, row, row_end, [&](const Product& p, const Weights& w, long row, long row_end) {
      if (where_they_are) {
        row = is_turned ? by_transposing(call, p, w, row, row_end) : in_place(call, p, w, row, row_end);
      }
      by_written_panels(call, p, w, row, row_end);
    });
  });
}

} // namespace mlxrs::matmul
