// See vocabulary.h.
#include <cmath>
#include <limits>

#include "vocabulary.h"

namespace mlxrs::ops {
namespace {

constexpr float nothing = -std::numeric_limits<float>::infinity();
// The elements of a piece: a multiple of `peak_of`.
constexpr long piece = 16384;
static_assert(piece % peak_of == 0);

} // namespace

Vocabulary::Vocabulary(const mx::array& x)
    : xs_(x), n_(x.shape(-1)), rows_(static_cast<long>(x.size()) / n_), of_row_((n_ + piece - 1) / piece),
      peaks_of_row_((n_ + peak_of - 1) / peak_of), itemsize_(x.itemsize()), kernels_(&choose_kernels(x.dtype())) {}

template <typename Body>
void Vocabulary::each_piece(const Body& body) const {
  share(static_cast<uint32_t>(rows_ * of_row_), static_cast<double>(rows_) * n_, [&](uint32_t i) {
    long begin = i % of_row_ * piece;
    body(i / of_row_, begin, std::min(piece, n_ - begin), i);
  });
}

std::vector<Entry> Vocabulary::largest() const {
  std::vector<Entry> of_pieces(rows_ * of_row_), largest(rows_);
  each_piece([&](long row, long begin, long n, uint32_t i) {
    long id = begin + kernels_->argmax(this->row(row) + begin * itemsize_, n, &of_pieces[i].value);
    of_pieces[i].id = static_cast<uint32_t>(id);
  });
  for (long row = 0; row < rows_; row++) {
    auto first = of_pieces.begin() + row * of_row_;
    largest[row] = *std::min_element(first, first + of_row_);
  }
  return largest;
}

Vocabulary::Peaks Vocabulary::peaks() const {
  Peaks all{std::vector<float>(rows_ * peaks_of_row_), std::vector<char>(rows_, true), peaks_of_row_};
  std::vector<char> numbers(rows_ * of_row_);
  each_piece([&](long row, long begin, long n, uint32_t i) {
    float* to = all.values.data() + row * peaks_of_row_ + begin / peak_of;
    numbers[i] = kernels_->peaks(this->row(row) + begin * itemsize_, n, to);
  });
  for (size_t i = 0; i < numbers.size(); i++) {
    all.numbers[i / of_row_] &= numbers[i];
  }
  return all;
}

Entry Vocabulary::best(const char* row, const float* peaks) const {
  long begin = (std::max_element(peaks, peaks + peaks_of_row_) - peaks) * peak_of;
  Entry best;
  long id = begin + kernels_->argmax(row + begin * itemsize_, std::min(peak_of, n_ - begin), &best.value);
  best.id = static_cast<uint32_t>(id);
  return best;
}

std::vector<Entry> Vocabulary::contenders(const char* row, const float* peaks, long count) const {
  // At least `count` logits are greater than or equal to the count-th largest peak.
  float least = nothing;
  if (count < peaks_of_row_) {
    std::vector<float> sorted(peaks, peaks + peaks_of_row_);
    std::nth_element(sorted.begin(), sorted.begin() + (count - 1), sorted.end(), std::greater<>());
    least = sorted[count - 1];
  }
  std::vector<Entry> found;
  for (long b = 0; b < peaks_of_row_; b++) {
    if (peaks[b] < least) {
      continue;
    }
    for (long i = b * peak_of; i < std::min(n_, (b + 1) * peak_of); i++) {
      float x = kernels_->at(row, i), value = x == x ? x : nothing;
      if (value >= least) {
        found.push_back({value, static_cast<uint32_t>(i)});
      }
    }
  }
  return found;
}

// Finds the threshold without a sort. Sums of e^(x - best) above four floors at a time narrow the range of the
// threshold, until few logits are left in it.
float Vocabulary::nucleus(const char* row, float best, float p) const {
  float* e = workspace(3 * n_) + n_;
  double wanted = p * kernels_->weigh(row, best, n_, e);
  // `before` is the sum of the elements from `high` up, which is less than `wanted`. `enough` is the sum from `low` up.
  float high = std::numeric_limits<float>::infinity(), low = 0;
  double before = 0, enough = 0;
  float floors[floors_at_once] = {0x1p-1f, 0x1p-4f, 0x1p-10f, 0x1p-22f};
  while (true) {
    double sums[floors_at_once];
    ::mlxrs::ops::kernels().above(e, n_, floors, sums);
    for (long k = 0; k < floors_at_once; k++) {
      if (sums[k] >= wanted) {
        low = floors[k];
        enough = sums[k];
        break;
      }
      high = floors[k];
      before = sums[k];
    }
    constexpr double few = 256;
    if (low > 0 && enough - before <= few * low) {
      break;
    }
    if (low == 0) {
      if (high < 0x1p-120f) {
        return nothing;
      }
      for (long k = 0; k < floors_at_once; k++) {
        floors[k] = std::max(high * std::exp2(-8.0f * static_cast<float>(1 << k)), 0x1p-126f);
      }
    } else {
      float top = std::log2(std::min(high, 1.0f)), step = (std::log2(low) - top) / (floors_at_once + 1);
      for (long k = 0; k < floors_at_once; k++) {
        floors[k] = std::exp2(top + static_cast<float>(k + 1) * step);
      }
      // The remaining elements are equal, or differ by rounding.
      if (!(floors[0] < std::min(high, 1.0f) && floors[floors_at_once - 1] > low)) {
        break;
      }
    }
  }
  auto* ids = reinterpret_cast<uint32_t*>(e + n_);
  long count = ::mlxrs::ops::kernels().between(e, n_, low, high, ids);
  std::vector<float> near(count);
  std::transform(ids, ids + count, near.begin(), [&](uint32_t id) { return kernels_->at(row, id); });
  std::sort(near.begin(), near.end(), std::greater<>());
  float least = best;
  for (float x : near) {
    if (before >= wanted) {
      break;
    }
    least = x;
    before += std::exp(static_cast<double>(x) - best);
  }
  return least;
}

} // namespace mlxrs::ops
