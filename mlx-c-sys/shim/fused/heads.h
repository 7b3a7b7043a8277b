// Heads of attention out of a projection, norm and rotation included, token by token: for the node that gives them, and for the one
// that writes keys where they stay.
#pragma once

#include <cmath>
#include <memory>
#include <mutex>

#include "kernels.h"
#include "node.h"

namespace mlxrs::fused {

// The angles of tokens, for any thread: on the stream's thread only pointers are known. Frequencies are worked out once for all.
class Angles {
 public:
  Angles(const RopeOptions& options, const mx::array& offset, const mx::array* freqs)
      : options_(options), at_(offset.data<int32_t>()), step_(offset.size() > 1 ? offset.strides(0) : 0),
        freqs_(freqs != nullptr ? freqs->data<float>() : nullptr), freq_step_(freqs != nullptr ? freqs->strides(0) : 0) {}

  long half() const {
    return options_.dims / 2;
  }
  // The rotation of one token of one row; `work` has room for 2 half.
  Rotation of(long row, long token, long n, float* work) const {
    std::call_once(once_->flag, [this] { once_->frequencies = frequencies(); });
    float position = static_cast<float>(token) + static_cast<float>(at_[row * step_]);
    kernels().angles(position * options_.scale, once_->frequencies.data(), half(), work, work + half());
    return {n, half(), options_.traditional, work, work + half()};
  }

 private:
  struct Once {
    std::once_flag flag;
    std::vector<float> frequencies;
  };

  std::vector<float> frequencies() const {
    std::vector<float> result(half());
    for (long i = 0; i < half(); i++) {
      result[i] = freqs_ != nullptr
          ? 1.0f / freqs_[i * freq_step_]
          : std::exp(-static_cast<float>(i) * (std::log(*options_.base) / static_cast<float>(half())));
    }
    return result;
  }

  RopeOptions options_;
  const int32_t* at_;
  int64_t step_;
  const float* freqs_;
  int64_t freq_step_;
  std::shared_ptr<Once> once_ = std::make_shared<Once>();
};

struct HeadsOptions {
  RopeOptions rope;
  int dim;
  bool norm;
  float eps;
};

// The heads of each token of an evaluated projection. `in`: [B, L, H dim], offset, freqs, and the norm's weight if there is one.
class TokenHeads {
 public:
  TokenHeads(const HeadsOptions& options, const Arrays& in)
      : options_(options), angles_(options.rope, in[1], &in[2]), xs_(in[0]),
        count_(in[0].shape(2) / options.dim), rows_(&row_kernels(in[0].dtype())), itemsize_(in[0].itemsize()) {
    if (options.norm) {
      weight_ = in[3].data<char>();
      weight_step_ = in[3].strides(0);
    }
  }

  // Writes head h of a row's token, of `tokens`, to to(h).
  template <typename To>
  void operator()(long row, long token, long tokens, const To& to) const {
    long n = options_.dim;
    float* work = workspace(2 * angles_.half() + n + n * count_);
    auto rotation = angles_.of(row, token, n, work);
    float* dense = work + 2 * angles_.half();
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

// What heads are made of, where `y` is a node of `heads` on this stream that nobody has computed yet.
struct MadeHeads {
  HeadsOptions options;
  Arrays in;
};
std::optional<MadeHeads> made_heads(const mx::array& y, mx::Stream s);
mx::array heads_plainly(const HeadsOptions& options, const Arrays& in, mx::Stream s);

} // namespace mlxrs::fused
