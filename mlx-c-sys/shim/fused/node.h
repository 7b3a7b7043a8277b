// A fused operation as a node of MLX's graph. Its transformations are those of the plain graph that MLX has for it, but
// for the derivatives that training needs (derivatives.cpp).
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mlx/backend/common/utils.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"

#include "../profile.h"
#include "../run_ahead.h"
#include "../threads.h"
#include "kernels.h"

namespace mlxrs::fused {

namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;

// Runs `body(i)` for each i in [0, n); shared out when all of it is `work` multiplications and that is worth it. For code that is on a
// stream's thread already.
template <typename Body>
void share(uint32_t n, double work, const Body& body) {
  auto& threads = Threads::shared();
  if (work < 20e3 || threads.count() < 2) {
    for (uint32_t i = 0; i < n; i++) {
      body(i);
    }
    return;
  }
  threads.each_several(n, 8, body);
}

class Node : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;

  // The same results by MLX's own operations: a node has one of the two.
  virtual mx::array plain(const Arrays& inputs) {
    return plain_all(inputs).at(0);
  }
  virtual Arrays plain_all(const Arrays& inputs) {
    return {plain(inputs)};
  }

  // The same results by operations whose derivatives are taken in its place: MLX's own, or smaller nodes that have a
  // derivative which is a node.
  virtual Arrays parts(const Arrays& inputs) {
    return plain_all(inputs);
  }

  // Gives the outputs memory and hands the work to the stream.
  virtual void encode(const Arrays& in, Arrays& out) = 0;

  void eval_cpu(const Arrays& in, Arrays& out) final {
    timed(stream(), name(), [&] { encode(in, out); });
    size_t bytes = 0;
    for (const auto& y : out) {
      // Not what is written in place.
      bytes += y.data_shared_ptr().use_count() > 1 ? 0 : y.nbytes();
    }
    run_ahead(stream(), bytes);
  }

  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::runtime_error(std::string(name()) + ": this form runs on the CPU only");
  }

  Arrays vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) override {
    // Only of those: others may have no gradient.
    Arrays some;
    for (int i : argnums) {
      some.push_back(primals[i]);
    }
    auto of_some = [&](const Arrays& some) {
      Arrays all = primals;
      for (size_t i = 0; i < argnums.size(); i++) {
        all[argnums[i]] = some[i];
      }
      return parts(all);
    };
    return mx::vjp(of_some, some, cotangents).second;
  }

  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override {
    Arrays all;
    for (const auto& primal : primals) {
      all.push_back(mx::zeros_like(primal, stream()));
    }
    for (size_t i = 0; i < argnums.size(); i++) {
      all[argnums[i]] = tangents[i];
    }
    return mx::jvp(plainly(), primals, all).second;
  }

  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs, const std::vector<int>& axes) override {
    auto outputs = mx::vmap(plainly(), axes)(inputs);
    std::vector<int> out_axes(outputs.size(), 0);
    return {std::move(outputs), std::move(out_axes)};
  }

 protected:
  // The same on the stream's thread, later.
  template <typename Body>
  void dispatch(uint32_t n, double work, Body body) {
    mx::cpu::get_command_encoder(stream()).dispatch([n, work, body = std::move(body)] { share(n, work, body); });
  }
 private:
  std::function<Arrays(const Arrays&)> plainly() {
    return [this](const Arrays& inputs) { return plain_all(inputs); };
  }
};

// The node of type N on this stream that is to compute `y`, if nobody has done so yet. Not under a transformation, which may ask for
// each array by itself.
template <typename N>
std::shared_ptr<N> uncomputed(const mx::array& y, mx::Stream s) {
  if (y.status() != mx::array::Status::unscheduled || !y.has_primitive() || y.is_tracer()) {
    return nullptr;
  }
  auto node = std::dynamic_pointer_cast<N>(y.primitive_ptr());
  return node != nullptr && node->stream() == s ? node : nullptr;
}

// Gives an output memory, which begins with a line of the cache where it is large.
inline void set_data(mx::array& y) {
  constexpr size_t line = 64, large = 1 << 16;
  if (y.nbytes() < large) {
    y.set_data(mx::allocator::malloc(y.nbytes()));
    return;
  }
  y.set_data(mx::allocator::malloc(y.nbytes() + line));
  size_t over = reinterpret_cast<uintptr_t>(y.data<char>()) % line, offset = (line - over) % line;
  y.copy_shared_buffer(y, y.strides(), y.flags(), y.data_size(), static_cast<int64_t>(offset / y.itemsize()));
}

// Where the vectors along the last axis of an array are; the array may be any view.
class Rows {
 public:
  explicit Rows(const mx::array& a)
      : shape_(a.shape().begin(), a.shape().end() - 1), strides_(a.strides().begin(), a.strides().end() - 1),
        step_(a.strides().back()) {}

  // Elements from the beginning of the array to row `i`, in row-major order.
  int64_t operator()(uint32_t i) const {
    return mx::elem_to_loc(static_cast<int>(i), shape_, strides_);
  }
  // Elements from one to the next in a row.
  int64_t step() const {
    return step_;
  }

 private:
  mx::Shape shape_;
  mx::Strides strides_;
  int64_t step_;
};

// The vectors along the last axis of an array, dense: where they are, or copied.
class Vectors {
 public:
  explicit Vectors(const mx::array& a)
      : at_(a.data<char>()), rows_(a), n_(a.shape(-1)), size_(a.itemsize()), in_order_(a.flags().row_contiguous) {}

  // Vector `i`; `work` has room for one.
  const char* operator()(uint32_t i, void* work) const {
    if (in_order_) {
      return at_ + int64_t(i) * n_ * size_;
    }
    const char* from = at_ + rows_(i) * size_;
    if (rows_.step() == 1 || n_ == 1) {
      return from;
    }
    gather(from, rows_.step(), n_, size_, work);
    return static_cast<const char*>(work);
  }
  // Whether vectors are where they are, and `work` is never needed.
  bool in_place() const {
    return in_order_ || rows_.step() == 1 || n_ == 1;
  }
  // Puts vector `i` there.
  void copy(uint32_t i, void* to) const {
    if (const char* from = (*this)(i, to); from != to) {
      std::memcpy(to, from, nbytes());
    }
  }
  size_t nbytes() const {
    return n_ * size_;
  }
  // One after the other in memory: nothing is copied.
  bool in_order() const {
    return in_order_;
  }

  // Copies `n` elements of `size` bytes, `step` elements apart.
  static void gather(const char* from, int64_t step, long n, size_t size, void* to) {
    if (size == 4) {
      gather(reinterpret_cast<const uint32_t*>(from), step, n, static_cast<uint32_t*>(to));
    } else {
      gather(reinterpret_cast<const uint16_t*>(from), step, n, static_cast<uint16_t*>(to));
    }
  }

 private:
  template <typename T>
  static void gather(const T* from, int64_t step, long n, T* to) {
    for (long i = 0; i < n; i++) {
      to[i] = from[i * step];
    }
  }

  const char* at_;
  Rows rows_;
  long n_;
  size_t size_;
  bool in_order_;
};

// Memory of the thread for `n` floats, on a cache line.
inline float* workspace(size_t n) {
  thread_local std::vector<float> memory;
  if (memory.size() < n + 16) {
    memory.resize(n + 16);
  }
  auto at = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<float*>((at + 63) / 64 * 64);
}

// The kernels for a dtype of `is_float`.
inline Type type_of(mx::Dtype dtype) {
  return dtype == mx::float32 ? Type::f32 : dtype == mx::float16 ? Type::f16 : Type::bf16;
}
inline const RowKernels& row_kernels(mx::Dtype dtype) {
  return kernels().rows[static_cast<int>(type_of(dtype))];
}
inline bool is_float(mx::Dtype dtype) {
  return dtype == mx::float32 || dtype == mx::float16 || dtype == mx::bfloat16;
}

// Each gives the operation as one node, or nothing where only MLX's own will do.
std::optional<mx::array> rms_norm(
    const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::Stream s);

// residual + x, or residual + rms_norm(x, inner); and rms_norm of that sum with `weight`, where there is one.
std::optional<Arrays> add_norm(
    const mx::array& x,
    const mx::array& residual,
    const std::optional<mx::array>& inner,
    const std::optional<mx::array>& weight,
    float eps,
    mx::Stream s);

struct RopeOptions {
  int dims;
  bool traditional;
  std::optional<float> base;
  float scale;
};
std::optional<mx::array> rope(
    const mx::array& x,
    const RopeOptions& options,
    const mx::array& offset,
    const std::optional<mx::array>& freqs,
    mx::Stream s);
// [B, L, H D] -> [B, H, L, D]: heads apart, rms_norm where there is a weight, rope with `freqs`.
std::optional<mx::array> heads(
    const mx::array& x,
    int dim,
    const std::optional<mx::array>& weight,
    float eps,
    const RopeOptions& options,
    const mx::array& offset,
    const mx::array& freqs,
    mx::Stream s);

// Who sees whom. `placed` is told by `offsets`, the position of each row's first query: a query sees what is at or before
// its own position, and with a window only the last so many positions, its own included.
enum class Seen { all, causal, masked, placed };
// Where the keys of `placed` are. `straight`: slot j has position j. `ring`: slot j of S has the last position congruent
// to j. `behind`: slot j has position offset - (S - L) + j, so that the last L slots have the queries' own.
enum class Layout { straight, ring, behind };

struct AttentionOptions {
  float scale, cap; // cap 0: none
  Seen seen;
  Layout layout;
  int window; // 0: none
  RowPacking packing; // of keys and values
};
// `told`: the mask of `masked`, or the offsets of `placed`. `sinks`: [H], f32.
std::optional<mx::array> attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const AttentionOptions& options,
    const std::optional<mx::array>& told,
    const std::optional<mx::array>& sinks,
    mx::Stream s);
// True where a query of `placed` sees a key: [B or 1, 1, L, S].
mx::array placed_mask(int queries, int slots, const AttentionOptions& options, const mx::array& offsets, mx::Stream s);
mx::array attention_plainly(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const AttentionOptions& options,
    const std::optional<mx::array>& told,
    const std::optional<mx::array>& sinks,
    mx::Stream s);

// `in`: two buffers [B, K, S, D], what is new for each [B, K, L, D], and offsets, I32 [B] or [1]: both buffers with the new
// tokens in slots from the offsets on, modulo S in a ring. With `in_place` the promises of mlxrs_force_donate. Where there
// is a packing the buffers hold packed vectors, U32, and what is new is packed. Buffers that are `blank` and keys that are `heads`
// are made by this node, if nobody has computed them yet.
Arrays store(const Arrays& in, const RowPacking& packing, bool ring, bool in_place, mx::Stream s);
Arrays store_plainly(const Arrays& in, const RowPacking& packing, bool ring, mx::Stream s);

// Of 4 or 8 bits and a group that MLX has, or none of both.
RowPacking row_packing(int bits, int group);
// Vectors along the last axis as RowPacking says: [.., D] of floating point -> [.., words] U32, and back.
mx::array pack(const mx::array& x, const RowPacking& packing, mx::Stream s);
mx::array pack_plainly(const mx::array& x, const RowPacking& packing, mx::Stream s);
mx::array unpack_plainly(const mx::array& words, const RowPacking& packing, mx::Dtype dtype, mx::Stream s);
// Elements of the packed vectors of an array; 0 if they are none. Without a packing: the last axis.
int unpacked_size(const mx::array& words, const RowPacking& packing, mx::Dtype dtype);

std::optional<mx::array> linear(const mx::array& x, const mx::array& weight, mx::Stream s);

// How the codes of a quantised matrix are written, in MLX's words.
struct Packing {
  int group, bits;
  std::string mode;
};
std::optional<mx::array> packed_linear(
    const mx::array& x,
    const mx::array& packed,
    const mx::array& scales,
    const std::optional<mx::array>& biases,
    const Packing& packing,
    mx::Stream s);
// The same arrays, as outputs of one node if they are products of one array, not yet computed, with matrices that are written alike.
Arrays together(const Arrays& products, mx::Stream s);

// A matrix or several, packed where there are scales.
struct Parts {
  mx::array weight;
  std::optional<mx::array> scales, biases;
  Packing packing;
};
// Of matrices [experts, out, in].
std::optional<mx::array> experts(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);
mx::array packed_plainly(
    const mx::array& x, const mx::array& w, const mx::array& scales, const std::optional<mx::array>& biases,
    const Packing& packing, mx::Stream s);
mx::array experts_plainly(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s);
// Rows of a matrix, [..] -> [.., in].
std::optional<mx::array> lookup(const mx::array& indices, const Parts& w, mx::Dtype dtype, mx::Stream s);
mx::array lookup_plainly(const mx::array& indices, const Parts& w, mx::Dtype dtype, mx::Stream s);

// Zeros, of which big ones take memory where they are touched only.
mx::array blank(const mx::Shape& shape, mx::Dtype dtype, mx::Stream s);
// Whether an array is to be such zeros on this stream, and nobody has computed it yet.
bool is_blank(const mx::array& a, mx::Stream s);
// The same for memory that is there.
void fill_with_zeros(char* begin, size_t size);

// What stands between the halves of a gated MLP.
enum class Gate { silu, gelu_tanh };
std::optional<mx::array> gated(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s);
mx::array gated_plainly(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s);
// gate(x) · up as a node of its own, and as one with the products that x and up are, if they are products of one array, not yet computed.
mx::array gated_apart(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s);
std::optional<mx::array> gated_products(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s);
// logsumexp(logits) - logits[target] over the last axis.
std::optional<mx::array> cross_entropy(const mx::array& logits, const mx::array& targets, mx::Stream s);
// U32: the first of the largest along the last axis; numbers only.
std::optional<mx::array> argmax(const mx::array& x, mx::Stream s);
// Along the last axis, in f32.
std::optional<mx::array> logsumexp(const mx::array& x, mx::Stream s);
mx::array logsumexp_plainly(const mx::array& x, mx::Stream s);
// The n largest along the last axis, best first, equal ones in the order of their ids: ids (U32) and values.
std::optional<Arrays> top(const mx::array& x, int n, mx::Stream s);
Arrays top_plainly(const mx::array& x, int n, mx::Stream s);
// [B, 1]: the least of x [B, V] that is kept when the likeliest are kept while those before have less than p [B, 1].
std::optional<mx::array> nucleus(const mx::array& x, const mx::array& p, mx::Stream s);
mx::array nucleus_plainly(const mx::array& x, const mx::array& p, mx::Stream s);
// How rows of x [B, V] draw: keys, U32 [B, 2], of their noise; [B, 3] what logits are multiplied by (0: the largest is taken), p of the
// nucleus and the least logit below the largest; I32 [B]: how many of the largest take part. 1, minus infinity and V for none. All
// dense. U32 [B]; ~0 where the logits are no numbers.
std::optional<mx::array> draw(
    const mx::array& x, const mx::array& keys, const mx::array& numbers, const mx::array& counts, mx::Stream s);
// cap tanh(x / cap)
std::optional<mx::array> soft_cap(const mx::array& x, float cap, mx::Stream s);
mx::array soft_cap_plainly(const mx::array& x, float cap, mx::Stream s);

} // namespace mlxrs::fused
