// Converts a projection to heads, normed and rotated, one token at a time. Two nodes use this: `Heads` returns the
// heads, and the store node writes keys into the KV cache and may return the heads of queries.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "rope.h"

namespace mlxrs::ops {

// The rotation angles of tokens. `of` may run on any thread. Frequencies given as an array are read there, when they
// are evaluated.
class Angles {
 public:
  Angles(const RopeOptions& options, const mx::array& offset, const mx::array* freqs)
      : options_(options), at_(offset.data<int32_t>()), has_positions_(has_positions(offset)),
        step_(has_positions_ || offset.size() > 1 ? offset.strides(0) : 0), token_step_(has_positions_ ? offset.strides(1) : 0),
        freqs_(freqs != nullptr ? freqs->data<float>() : nullptr), freq_step_(freqs != nullptr ? freqs->strides(0) : 0) {
    if (freqs == nullptr) {
      std::vector<float> frequencies(half());
      float step = std::log(*options.base) / static_cast<float>(half());
      for (long i = 0; i < half(); i++) {
        frequencies[i] = std::exp(-static_cast<float>(i) * step);
      }
      frequencies_ = std::make_shared<const std::vector<float>>(std::move(frequencies));
    }
  }

  long half() const {
    return options_.dims / 2;
  }
  // The size of the workspace that `of` needs, in floats.
  long work_size() const {
    return 3 * half();
  }
  // The rotation for one token of one row. Its sines and cosines are in `work`.
  Rotation of(long row, long token, long n, float* work) const {
    float *sines = work + half(), *own = work + 2 * half();
    for (long i = 0; frequencies_ == nullptr && i < half(); i++) {
      own[i] = 1.0f / freqs_[i * freq_step_];
    }
    float first = static_cast<float>(at_[row * step_ + token * token_step_]);
    float position = has_positions_ ? first : static_cast<float>(token) + first;
    kernels().angles(position * options_.scale, frequencies_ != nullptr ? frequencies_->data() : own, half(), work, sines);
    return {n, half(), options_.traditional, work, sines};
  }

 private:
  RopeOptions options_;
  const int32_t* at_;
  bool has_positions_;
  int64_t step_, token_step_;
  const float* freqs_;
  int64_t freq_step_;
  std::shared_ptr<const std::vector<float>> frequencies_;
};

// Computes the heads of single tokens from an evaluated projection. `in` has x [B, L, H dim], offset, freqs and
// optionally the norm's weight [dim].
class TokenHeads {
 public:
  TokenHeads(const HeadsOptions& options, std::span<const mx::array> in)
      : options_(options), angles_(options.rope, in[1], &in[2]), xs_(in[0]),
        count_(in[0].shape(2) / options.dim), rows_(&row_kernels(in[0].dtype())), itemsize_(in[0].itemsize()) {
    if (in.size() > 3) {
      weight_ = in[3].data<char>();
      weight_step_ = in[3].strides(0);
    }
  }

  // Computes all heads of one token (`token` of `tokens`) of one row, and writes head h to the address to(h).
  template <typename To>
  void operator()(long row, long token, long tokens, const To& to) const {
    long n = options_.dim;
    float* work = workspace(angles_.work_size() + n + n * count_);
    auto rotation = angles_.of(row, token, n, work);
    float* dense = work + angles_.work_size();
    const char* weight = weight_;
    if (weight != nullptr && weight_step_ != 1) {
      Vectors::gather(weight, weight_step_, n, itemsize_, dense);
      weight = reinterpret_cast<const char*>(dense);
    }
    const char* x = xs_(static_cast<uint32_t>(row * tokens + token), dense + n);
    for (uint32_t head = 0; head < count_; head++, x += n * itemsize_) {
      char* y = to(head);
      if (weight != nullptr) {
        rows_->rms_norm(x, weight, options_.eps, n, y);
        rows_->rotate(rotation, y, y);
      } else {
        rows_->rotate(rotation, x, y);
      }
    }
  }

 private:
  HeadsOptions options_;
  Angles angles_;
  Vectors xs_;
  uint32_t count_;
  const RowKernels* rows_;
  size_t itemsize_;
  const char* weight_ = nullptr;
  int64_t weight_step_ = 1;
};

// Writes all heads of one token to the array of heads y [B, H, L, dim]. A task is a token of a row.
class HeadsTasks {
 public:
  HeadsTasks(const HeadsOptions& options, std::span<const mx::array> in, mx::array& y)
      : write_(options, in), to_(y.data<char>()), size_(options.dim * y.itemsize()), heads_(y.shape(1)), tokens_(y.shape(2)) {}

  void operator()(uint32_t task) const {
    uint32_t row = task / tokens_, token = task % tokens_;
    write_(row, token, tokens_, [&](uint32_t head) { return to_ + ((row * heads_ + head) * tokens_ + token) * size_; });
  }

 private:
  TokenHeads write_;
  char* to_;
  size_t size_;
  uint32_t heads_, tokens_;
};

} // namespace mlxrs::ops
