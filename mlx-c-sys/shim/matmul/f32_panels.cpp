// See f32_panels.h.
#include "f32_panels.h"

#include <cstring>

#include "convert.h"
#include "runtime/isa.h"

namespace mlxrs::matmul {
namespace {

// The stride of the rows of x or y in bytes, or 0 if it is not constant.
long distance(const void* const* rows, long m) {
  auto at = [&](long i) { return static_cast<const char*>(rows[i]); };
  long step = m > 1 ? at(1) - at(0) : 0;
  for (long i = 2; i < m; i++) {
    if (at(i) - at(i - 1) != step) {
      return 0;
    }
  }
  return step;
}

void row_to_f32(const Dequantizer& dequantizer, Float type, const void* from, long n, float* to) {
  Coding coding = type == Float::f32 ? Coding::f32 : type == Float::f16 ? Coding::f16 : Coding::bf16;
  dequantizer.to_f32({{coding, type == Float::f32 ? 32 : 16, 0, 1, n, from, type, nullptr, nullptr}, 0, 1, 0, 0,
                   nullptr, nullptr, nullptr}, 0, n, to, n);
}

void row_from_f32(Float type, const float* from, long n, void* to) {
  if (type == Float::f32) {
    std::memcpy(to, from, n * sizeof(float));
  } else if (type == Float::bf16) {
    to_bf16(from, n, static_cast<uint16_t*>(to));
  } else {
    to_f16(from, n, static_cast<uint16_t*>(to));
  }
}

// The rows of weights in a panel, which stays in L2.
constexpr long panel_rows = 48;
// The rows of x that are multiplied with a panel at a time.
constexpr long band = 96;
// Up to this many rows of x, dense weights are read in place, and the kernels widen them as they load them.
constexpr long few_dense = 16;

const float* row_of(const Weights& w, long row) {
  return reinterpret_cast<const float*>(w.row(row));
}

// Kernels that read dense weights in place: `direct` for few rows of x, `pack` for many. Null for packed weights.
struct InPlace {
  void (*direct)(const sgemm::Product&, const float* rows, long col, long col_end) = nullptr;
  void (*pack)(const sgemm::Product&, long col, long col_end, float* cols) = nullptr;
};

InPlace in_place_of(const Weights& w, const sgemm::Kernels& kernels) {
  if (w.coding == Coding::f32) {
    return {kernels.direct, kernels.pack_cols};
  }
  if (w.coding == Coding::bf16) {
    return {kernels.direct_bf16, kernels.pack_cols_bf16};
  }
  if (w.coding == Coding::f16) {
    return {kernels.direct_f16, kernels.pack_cols_f16};
  }
  return {};
}

// Writes rows [row, row + rows) of the weights to `panel` as f32. `scales` and `biases` are scratch memory.
void write_panel(
    const Product& p, const Weights& w, const Dequantizer& dequantizer, long row, long rows, float* scales, float* biases,
    float* panel, long ld) {
  dequantize_groups(dequantizer, w, row, rows, scales, biases);
  Panel from{w, row, rows, 0, w.groups(), scales, biases, nullptr};
  dequantizer.to_f32(from, 0, w.k, panel, ld);
  // Rounds affine weights to bf16, as the other kernels for bf16 do. Values of the other codings are exact in bf16.
  if (p.type == Float::bf16 && w.coding == Coding::affine) {
    for (long i = 0; i < rows * ld; i++) {
      panel[i] = from_bf16(to_bf16(panel[i]));
    }
  }
}

// Computes y for rows of weights from `first` on, `side_by_side` at a time. Returns the first row that remains. The
// rows of one call are far apart, because several long ranges of memory are read faster than one.
long by_distant_rows(
    const Product& p, const Weights& w, sgemm::Product q, decltype(InPlace::direct) kernel, long side_by_side, const float* packed_x, long first,
    long row_end) {
  // The sums stay in a cache until they are rounded.
  constexpr long most = 1 << 12;
  while (row_end - first >= side_by_side) {
    const long far = std::min(most, row_end - first) / side_by_side, rows = side_by_side * far;
    float* sums = for_task.of<float>(p.m * rows);
    q.n = side_by_side;
    q.b_col = far * q.k;
    q.c_row = rows;
    q.c_col = far;
    for (long i = 0; i < far; i++) {
      q.b = row_of(w, first + i);
      q.c = sums + i;
      kernel(q, packed_x, 0, side_by_side);
    }
    for (long i = 0; i < p.m; i++) {
      row_from_f32(p.type, sums + i * rows, rows, static_cast<char*>(p.y[i]) + first * size_of(p.type));
    }
    first += rows;
  }
  return first;
}

} // namespace

void by_f32_panels(const Product& p, const Job& job, const sgemm::Kernels& kernels, const Dequantizer& dequantizer) {
  const Weights& w = job.w();
  const long k = w.k, ld = round_up(k, 16);
  const float* x = static_cast<const float*>(p.x[0]);
  long x_row = p.type == Float::f32 ? distance(p.x, p.m) / static_cast<long>(sizeof(float)) : 0;
  std::vector<float> converted;
  if (p.m > 1 ? x_row <= 0 : p.type != Float::f32) {
    converted.resize(p.m * ld);
    each(p.m, p.m * w.k, [&](uint32_t i) {
      row_to_f32(dequantizer, p.type, p.x[i], k, converted.data() + i * ld);
    });
    x = converted.data();
    x_row = ld;
  }
  sgemm::Product all{p.m, panel_rows, k, x, x_row, 1, nullptr, ld, 1, nullptr, panel_rows, 1, 1, 0};
  const InPlace in_place = in_place_of(w, kernels);
  bool direct = p.m <= (w.coding == Coding::bf16 || w.coding == Coding::f16 ? few_dense : sgemm::max_direct_rows);
  long rows_of_y = direct ? p.m : std::min(p.m, band), bands = (p.m + rows_of_y - 1) / rows_of_y;
  long band_size = direct ? kernels.direct_size(all) : kernels.rows_size(all, rows_of_y);
  float* packed_x = for_all.of<float>(bands * band_size);
  if (direct) {
    kernels.direct_pack(all, packed_x);
  } else {
    each(bands, p.m * k, [&](uint32_t i) {
      kernels.pack_rows(all, i * band, std::min(p.m, (i + 1) * band), packed_x + i * band_size);
    });
  }
  const bool is_direct_w = in_place.pack != nullptr && (!direct || p.m <= few_dense);
  long groups = round_up(panel_rows * w.groups(), 16);
  auto task = [&](const Product& p, const Weights& w, long first, long row_end) {
    if (direct && is_direct_w) {
      first = by_distant_rows(p, w, all, in_place.direct, kernels.direct_cols(all), packed_x, first, row_end);
    }
    // Rows of f32 with a constant stride are written in place. Other rows go through each task's own `y`.
    long y_row = p.type == Float::f32 ? distance(p.y, p.m) / static_cast<long>(sizeof(float)) : 0;
    bool is_direct_y = p.type == Float::f32 && (p.m == 1 || y_row > 0);
    long columns_size = direct ? 0 : kernels.cols_size(all, panel_rows), open_size = direct ? 0 : kernels.open_size(all, rows_of_y);
    long y_size = round_up(rows_of_y * panel_rows, 16), panel_size = is_direct_w ? 0 : panel_rows * ld;
    float* y = for_task.of<float>(y_size + columns_size + open_size + panel_size + 2 * groups);
    float *columns = y + y_size, *open = columns + columns_size, *panel = open + open_size, *scales = panel + panel_size;
    for (long row = first; row < row_end; row += panel_rows) {
      long rows = std::min(panel_rows, row_end - row);
      sgemm::Product q = all;
      q.n = rows;
      q.b = panel;
      if (is_direct_w) {
        q.b = row_of(w, row);
        q.b_col = k;
      } else {
        write_panel(p, w, dequantizer, row, rows, scales, scales + groups, panel, ld);
      }
      if (!direct) {
        (is_direct_w ? in_place.pack : kernels.pack_cols)(q, 0, rows, columns);
      }
      // Prefetches the next rows of dense weights, a part of them for each band.
      const long next = is_direct_w ? std::min(panel_rows, row_end - row - rows) * w.row_bytes() / bands : 0;
      auto meanwhile = [&](long i) {
        return sgemm::MemoryRange{reinterpret_cast<const char*>(row_of(w, row + rows)) + i / band * next, next};
      };
      for (long i = 0; i < p.m; i += rows_of_y) {
        q.m = std::min(rows_of_y, p.m - i);
        q.c = is_direct_y ? static_cast<float*>(p.y[i]) + row : y;
        q.c_row = is_direct_y ? y_row : panel_rows;
        if (direct) {
          (is_direct_w ? in_place.direct : kernels.direct)(q, packed_x, 0, rows);
        } else {
          kernels.packed(q, {0, q.m, 0, rows}, packed_x + i / band * band_size, columns, open, meanwhile(i));
        }
        for (long j = 0; !is_direct_y && j < q.m; j++) {
          row_from_f32(p.type, y + j * panel_rows, rows, static_cast<char*>(p.y[i + j]) + row * size_of(p.type));
        }
      }
    }
  };
  long parts = p.m <= (p.type == Float::f32 ? 4 : memory_bound_rows) ? 1 : 4;
  long most = most_joined(p, job, p.m, panel_rows, round_up(job.n(), panel_rows));
  share_rows(p, job, panel_rows, parts, most, [&](long row, long row_end) { each_matrix(p, job, {0, p.m}, row, row_end, task); });
}

void write_rows(const Weights& w, const std::vector<long>& rows, Float type, void* y) {
  const Dequantizer& dequantizer = dequantizer_of(isa());
  long bytes = w.k * size_of(type), groups = round_up(w.groups(), 16), n = static_cast<long>(rows.size());
  auto write = [&](uint32_t i) {
    void* to = static_cast<char*>(y) + i * bytes;
    bool is_same = w.coding == (type == Float::f32 ? Coding::f32 : type == Float::f16 ? Coding::f16 : Coding::bf16);
    if (is_same) {
      std::memcpy(to, w.row(rows[i]), bytes);
      return;
    }
    float* row = for_task.of<float>(round_up(w.k, 64) + 2 * groups);
    float *scales = row + round_up(w.k, 64), *biases = scales + groups;
    dequantize_groups(dequantizer, w, rows[i], 1, scales, biases);
    dequantizer.to_f32({w, rows[i], 1, 0, w.groups(), scales, biases, nullptr}, 0, w.k, row, w.k);
    row_from_f32(type, row, w.k, to);
  };
  each(n, n * w.k, write);
}

} // namespace mlxrs::matmul
