#include "matmul.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "../isa.h"
#include "../sgemm/product.h"
#include "../threads.h"
#include "amx.h"
#include "expand.h"
#include "floats.h"
#include "whole.h"

namespace mlxrs::matmul {
namespace {

// Memory of a thread, aligned for any kernel and kept for the next call.
class Memory {
 public:
  template <typename T>
  T* of(long n) {
    size_t bytes = n * sizeof(T);
    if (bytes > size_) {
      size_ = 0;
      memory_.reset();
      memory_.reset(static_cast<char*>(::operator new[](bytes, std::align_val_t(64))));
      size_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(char* p) const {
      ::operator delete[](p, std::align_val_t(64));
    }
  };
  std::unique_ptr<char[], Free> memory_;
  size_t size_ = 0;
};

// For what a call's caller prepares for all, and for what each task needs: the caller works on tasks too.
thread_local Memory for_all, for_task, for_join;

// Matrices that are multiplied with one x, alike but for their rows, and what becomes of the products: each has its y, or `join`
// makes one y of two.
struct Job {
  std::span<const Part> parts;
  Join join;

  // What all have in common; not n.
  const Weights& w() const {
    return parts[0].w;
  }
  // All rows, one matrix behind the other, or those of both.
  long n() const {
    long n = 0;
    for (const auto& part : parts) {
      n += part.w.n;
    }
    return join == nullptr ? n : w().n;
  }
};

long size_of(Float type) {
  return type == Float::f32 ? 4 : 2;
}

long round_up(long n, long unit) {
  return (n + unit - 1) / unit * unit;
}

// Calls body(i) for each i in [0, n), on all threads if there is enough to do: `elements` in all.
template <typename Body>
void each(long n, long elements, const Body& body) {
  if (elements < 1 << 14) {
    for (long i = 0; i < n; i++) {
      body(static_cast<uint32_t>(i));
    }
  } else {
    Threads::shared().each(static_cast<uint32_t>(n), body);
  }
}

// Calls body(row, row_end) for parts of [0, n) that are multiples of `unit` and at most `most`, which is one too, on all threads
// if there is enough to do: in `parts` for each thread, or more.
template <typename Body>
void share_rows(const Product& p, const Job& job, long unit, long parts, long most, const Body& body) {
  Threads& threads = Threads::shared();
  // Reading weights takes long too, when few are multiplied with them.
  long n = job.n();
  double work = static_cast<double>(n) * job.w().k * std::max(p.m, 4L);
  long count = threads.count(), least = (n + most - 1) / most;
  // As many for each thread.
  long pieces = std::max(count < 2 || work < 200e3 ? 1 : parts * count, least > 1 ? round_up(least, count) : 1);
  long size = round_up((n + pieces - 1) / pieces, unit);
  threads.each(static_cast<uint32_t>((n + size - 1) / size), [&](uint32_t i) { body(i * size, std::min(n, (i + 1) * size)); });
}

// The most rows of a task where two products wait to be joined: so many that both stay in the second cache.
long most_joined(const Product& p, const Job& job, long unit, long most) {
  constexpr long bytes = 1 << 19;
  return job.join == nullptr ? most : std::clamp(bytes / (2 * p.m * size_of(p.type)) / unit * unit, unit, most);
}

// Calls kernel(product, weights, row, row_end) for a task's rows of the matrices: of each for its y, or of two for memory from which
// they are joined.
template <typename Kernel>
void each_matrix(const Product& p, const Job& job, long row, long row_end, const Kernel& kernel) {
  if (job.join == nullptr) {
    long first = 0;
    for (const auto& part : job.parts) {
      long begin = std::max(row - first, 0L), end = std::min(row_end - first, part.w.n);
      if (begin < end) {
        kernel(Product{p.type, p.m, p.x, part.y, p.is_read}, part.w, begin, end);
      }
      first += part.w.n;
    }
    return;
  }
  long n = row_end - row, size = size_of(p.type), bytes = round_up(n * size, 64);
  char* memory = for_join.of<char>(2 * p.m * bytes);
  std::vector<void*> rows(p.m);
  Product q{p.type, p.m, p.x, rows.data(), true};
  for (const auto& part : job.parts) {
    for (long i = 0; i < p.m; i++) {
      // Where the row of y would begin.
      rows[i] = memory + i * bytes - row * size;
    }
    kernel(q, part.w, row, row_end);
    memory += p.m * bytes;
  }
  memory -= 2 * p.m * bytes;
  for (long i = 0; i < p.m; i++) {
    const char* a = memory + i * bytes;
    job.join(a, a + p.m * bytes, n, static_cast<char*>(p.y[i]) + row * size);
  }
}

void by_tiles(const Product& p, const Job& job, const Amx& amx, const Expander& expander) {
  const Weights& w = job.w();
  int dealt = expander.dealt(w);
  long blocks = (p.m + 15) / 16;
  auto* packed = for_all.of<uint16_t>(Amx::packed_size(p.m, Amx::steps(w.k, dealt)));
  each(blocks, p.m * w.k, [&](uint32_t i) { amx.pack(p, w.k, dealt, i, packed); });
  // A few rows of x take as long as reading the weights: in long pieces, each of which one core has fetched.
  bool few = p.m <= Amx::some;
  long parts = few || Amx::is_large(p.m, w.k) ? 1 : 4;
  long most = most_joined(p, job, Amx::unit, few ? round_up(job.n(), Amx::unit) : Amx::most(p.m, w.k));
  share_rows(p, job, Amx::unit, parts, most, [&](long row, long row_end) {
    void* scratch = for_task.of<char>(amx.scratch_size(p, w, expander, row_end - row));
    each_matrix(p, job, row, row_end, [&](const Product& p, const Weights& w, long row, long row_end) {
      amx.rows(p, w, expander, packed, row, row_end, scratch);
    });
  });
}

// Affine codes, in whole numbers.
void by_whole_numbers(const Product& p, const Job& job, const Whole& kernels) {
  const Weights& w = job.w();
  long block = std::min(p.m, kernels.block), blocks = (p.m + block - 1) / block, size = kernels.packed_size(w, block);
  char* packed = for_all.of<char>(blocks * size);
  each(blocks, p.m * w.k, [&](uint32_t i) { kernels.pack(p, w, i * block, block, packed + i * size); });
  long parts = p.m <= Amx::some ? 1 : 4;
  long most = most_joined(p, job, kernels.unit, round_up(job.n(), kernels.unit));
  share_rows(p, job, kernels.unit, parts, most, [&](long row, long row_end) {
    void* scratch = for_task.of<char>(kernels.scratch_size(p, w));
    each_matrix(p, job, row, row_end, [&](const Product& p, const Weights& w, long row, long row_end) {
      kernels.rows(p, w, packed, row, row_end, scratch);
    });
  });
}

// How many bytes lie between the rows of x or y when these are equally far apart, else 0.
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

void row_to_f32(Float type, const void* from, long n, float* to) {
  Coding coding = type == Float::f32 ? Coding::f32 : type == Float::f16 ? Coding::f16 : Coding::bf16;
  expand_portable().to_f32({{coding, type == Float::f32 ? 32 : 16, 0, 1, n, from, type, nullptr, nullptr}, 0, 1, 0, 0,
                            nullptr, nullptr, nullptr}, 0, n, to, n);
}

void row_from_f32(Float type, const float* from, long n, void* to) {
  auto* halves = static_cast<uint16_t*>(to);
  if (type == Float::f32) {
    std::memcpy(to, from, n * sizeof(float));
  } else if (type == Float::bf16) {
    for (long i = 0; i < n; i++) {
      halves[i] = to_bf16(from[i]);
    }
  } else {
    for (long i = 0; i < n; i++) {
      halves[i] = to_f16(from[i]);
    }
  }
}

// Writes a row of x in the order in which an expander writes weights, where zeros are already.
void deal(const uint16_t* x, long k, int dealt, uint16_t* to) {
  if (dealt == 1) {
    std::memcpy(to, x, k * sizeof(uint16_t));
    return;
  }
  for (long i = 0; i < k; i++) {
    long of_64 = i % 64;
    to[i - of_64 + of_64 % dealt * (64 / dealt) + of_64 / dealt] = x[i];
  }
}

// Rows of weights in a panel: it has its place in the second cache.
constexpr long panel_rows = 48;
// Rows of x that are multiplied with a panel at a time.
constexpr long band = 192;

// By kernels for f32, for which pairs of bf16 are elements too where `pairs` is set.
void by_panels(
    const Product& p, const Job& job, const sgemm::Kernels& kernels, const Expander& expander, bool pairs) {
  const Weights& w = job.w();
  // All sizes along k are in elements of the kernels.
  int dealt = pairs ? expander.dealt(w) : 1;
  long k = pairs ? round_up(w.k, dealt > 1 ? 64 : 2) / 2 : w.k, ld = round_up(k, 16);
  const float* x = static_cast<const float*>(p.x[0]);
  long x_row = p.type == Float::f32 ? distance(p.x, p.m) / static_cast<long>(sizeof(float)) : 0;
  std::vector<float> converted;
  if (p.m > 1 ? x_row <= 0 : p.type != Float::f32) {
    converted.resize(p.m * ld);
    for (long i = 0; i < p.m; i++) {
      float* to = converted.data() + i * ld;
      if (pairs) {
        deal(static_cast<const uint16_t*>(p.x[i]), w.k, dealt, reinterpret_cast<uint16_t*>(to));
      } else {
        row_to_f32(p.type, p.x[i], w.k, to);
      }
    }
    x = converted.data();
    x_row = ld;
  }
  sgemm::Product all{p.m, panel_rows, k, x, x_row, 1, nullptr, ld, 1, nullptr, panel_rows, 1, 1, 0};
  bool direct = p.m <= sgemm::max_direct_rows;
  long rows_of_y = direct ? p.m : std::min(p.m, band), bands = (p.m + rows_of_y - 1) / rows_of_y;
  long band_size = direct ? kernels.direct_size(all) : kernels.rows_size(all, {0, rows_of_y, 0, panel_rows});
  float* packed_x = for_all.of<float>(bands * band_size);
  if (direct) {
    kernels.direct_pack(all, packed_x);
  } else {
    each(bands, p.m * k, [&](uint32_t i) {
      kernels.pack_rows(all, {i * band, std::min(p.m, (i + 1) * band), 0, panel_rows}, packed_x + i * band_size);
    });
  }
  long groups = round_up(panel_rows * w.groups(), 16);
  auto task = [&](const Product& p, const Weights& w, long first, long row_end) {
    // Rows of f32 that are equally far apart are written where they belong, others through `y` of each task.
    long y_row = p.type == Float::f32 ? distance(p.y, p.m) / static_cast<long>(sizeof(float)) : 0;
    bool in_place = p.type == Float::f32 && (p.m == 1 || y_row > 0);
    sgemm::Part part{0, rows_of_y, 0, panel_rows};
    long work = direct ? 0 : kernels.packed_size(all, part);
    long panel_size = panel_rows * ld, y_size = round_up(rows_of_y * panel_rows, 16);
    float* panel = for_task.of<float>(panel_size + 2 * groups + y_size + work);
    float *scales = panel + panel_size, *biases = scales + groups, *y = biases + groups;
    if (w.k % 2 != 0 && pairs) {
      std::memset(panel, 0, panel_size * sizeof(float));
    }
    for (long row = first; row < row_end; row += panel_rows) {
      long rows = std::min(panel_rows, row_end - row);
      Panel from{w, row, rows, 0, w.groups(), scales, biases, nullptr};
      if (w.group > 0) {
        expander.scales(w.coding, w.scale_type, w.scales, row * w.groups(), rows * w.groups(), scales);
        if (w.biases != nullptr) {
          expander.scales(w.coding, w.scale_type, w.biases, row * w.groups(), rows * w.groups(), biases);
        }
      }
      if (pairs) {
        expander.to_bf16(from, 0, w.k, reinterpret_cast<uint16_t*>(panel), 2 * ld);
      } else {
        expander.to_f32(from, 0, w.k, panel, ld);
        if (p.type == Float::bf16 && w.coding != Coding::bf16) {
          for (long i = 0; i < rows * ld; i++) {
            panel[i] = from_bf16(to_bf16(panel[i]));
          }
        }
      }
      for (long i = 0; i < p.m; i += rows_of_y) {
        sgemm::Product q = all;
        q.m = std::min(rows_of_y, p.m - i);
        q.n = rows;
        q.a += i * x_row;
        q.b = panel;
        q.c = in_place ? static_cast<float*>(p.y[i]) + row : y;
        q.c_row = in_place ? y_row : panel_rows;
        if (direct) {
          kernels.direct(q, packed_x, 0, rows);
        } else {
          kernels.packed(q, {0, q.m, 0, rows}, packed_x + i / band * band_size, y + y_size);
        }
        for (long j = 0; !in_place && j < q.m; j++) {
          row_from_f32(p.type, y + j * panel_rows, rows, static_cast<char*>(p.y[i + j]) + row * size_of(p.type));
        }
      }
    }
  };
  long parts = p.m <= (p.type == Float::f32 ? 4 : Amx::some) ? 1 : 4;
  long most = most_joined(p, job, panel_rows, round_up(job.n(), panel_rows));
  share_rows(p, job, panel_rows, parts, most, [&](long row, long row_end) { each_matrix(p, job, row, row_end, task); });
}

const Expander& expander_of(Isa machine) {
  return machine >= Isa::avx512bf16 ? *expand_avx512() : machine >= Isa::avx2 ? *expand_avx2() : expand_portable();
}

// The kernels for products in whole numbers of so many rows; null where others are faster.
const Whole* whole_of(Isa machine, long m) {
  bool few = m <= (machine == Isa::amx ? Whole::few_beside_tiles : Whole::few);
  switch (machine) {
    case Isa::portable:
      return whole_neon();
    case Isa::avx2:
    case Isa::avx512:
      return few ? whole_avx2() : whole_tiles_avx2();
    case Isa::avx512vnni:
    case Isa::avx512bf16:
      return few ? whole_vnni() : whole_tiles_vnni();
    default:
      return few ? whole_vnni() : nullptr;
  }
}

void multiply_by(const Product& p, const Job& job) {
  const Weights& w = job.w();
  if (p.m == 0 || job.n() == 0) {
    return;
  }
  Isa machine = isa();
  const Expander& expander = expander_of(machine);
  const Whole* whole = whole_of(machine, p.m);
  if (whole != nullptr && Whole::takes(p, w)) {
    return by_whole_numbers(p, job, *whole);
  }
  bool is_bf16 = p.type == Float::bf16 && w.coding != Coding::f32 && w.coding != Coding::f16;
  if (is_bf16 && machine == Isa::amx) {
    return by_tiles(p, job, *amx(), expander);
  }
  if (is_bf16 && machine == Isa::avx512bf16) {
    return by_panels(p, job, *sgemm::pairs(), expander, true);
  }
  by_panels(p, job, sgemm::chosen(), expander, false);
}

} // namespace

void write_rows(const Weights& w, const std::vector<long>& rows, Float type, void* y) {
  const Expander& expander = expander_of(isa());
  long bytes = w.k * size_of(type), groups = round_up(w.groups(), 16), n = static_cast<long>(rows.size());
  auto write = [&](uint32_t i) {
    void* to = static_cast<char*>(y) + i * bytes;
    long at = rows[i] * w.groups();
    bool is_same = w.coding == (type == Float::f32 ? Coding::f32 : type == Float::f16 ? Coding::f16 : Coding::bf16);
    if (is_same) {
      std::memcpy(to, static_cast<const char*>(w.data) + rows[i] * w.row_bytes(), bytes);
      return;
    }
    float* row = for_task.of<float>(round_up(w.k, 64) + 2 * groups);
    float *scales = row + round_up(w.k, 64), *biases = scales + groups;
    expander.scales(w.coding, w.scale_type, w.scales, at, w.groups(), scales);
    if (w.biases != nullptr) {
      expander.scales(w.coding, w.scale_type, w.biases, at, w.groups(), biases);
    }
    expander.to_f32({w, rows[i], 1, 0, w.groups(), scales, biases, nullptr}, 0, w.k, row, w.k);
    row_from_f32(type, row, w.k, to);
  };
  each(n, n * w.k, write);
}

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
