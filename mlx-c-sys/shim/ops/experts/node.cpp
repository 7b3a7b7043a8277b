#include "core/checked.h"
#include "experts.h"
#include "ops/linear/operands.h"

#ifdef MLXRS_CUDA
#include "cuda/experts.h"
#endif

namespace mlxrs::ops {

#ifndef __APPLE__

namespace {

// Multiplies each row of x with the matrix of the expert that its index selects. Rows of the same expert are multiplied
// together. Inputs: x [.., 1, k] with one row for each index, the indices, the matrices [experts, n, k], and for packed
// matrices scales and biases.
class ExpertsLinear : public NodeWith<Coded> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    const auto& [coding, packing] = settings_;
    const auto &x = in[0], &indices = in[1], &weight = in[2];
    auto& y = out[0];
    bool packed = in.size() > 3, affine = coding == matmul::Coding::affine;
    long experts = weight.shape(0), n = weight.shape(1), k = x.shape(-1), m = indices.size();
    int bits = packed ? packing.bits : static_cast<int>(weight.itemsize()) * 8;
    const auto& scales = packed ? in[3] : weight;
    const auto& biases = packed && affine ? in[4] : weight;
    matmul::Weights first{coding, bits, packed ? packing.group : 0, n, k, nullptr, float_of(scales.dtype()),
                          nullptr, nullptr};
    long scale_bytes = packed ? n * first.groups() * static_cast<long>(scales.itemsize()) : 0;
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, type = float_of(x.dtype()), size = static_cast<long>(x.itemsize()), x = Vectors(x), weight = RowMajor(weight),
         scales = RowMajor(scales), biases = RowMajor(biases), at = indices.data<char>(), of = Rows(indices),
         wide = indices.shape(-1), y_at = y.data<char>()] {
          std::vector<char> x_copy, w_copy, s_copy, b_copy;
          // For rows of x that cannot be read in place. The buffer has one copy of x's row for each index, because
          // several experts may read the same row.
          x_copy.resize(x.in_place() ? 0 : m * k * size);
          const char* w_at = weight.get(w_copy);
          const char* s_at = packed ? scales.get(s_copy) : nullptr;
          const char* b_at = packed && affine ? biases.get(b_copy) : nullptr;
          std::vector<std::vector<long>> rows(experts);
          for (long i = 0; i < m; i++) {
            int32_t expert;
            int64_t place = of(static_cast<uint32_t>(i / wide)) + i % wide * of.step();
            std::memcpy(&expert, at + place * sizeof expert, sizeof expert);
            if (expert < 0 || expert >= experts) {
              throw std::out_of_range(expert_error(expert, experts));
            }
            rows[expert].push_back(i);
          }
          auto multiply = [&](long e) {
            std::vector<const void*> from;
            std::vector<void*> to;
            for (long i : rows[e]) {
              from.push_back(x(static_cast<uint32_t>(i), x_copy.data() + (x.in_place() ? 0 : i * k * size)));
              to.push_back(y_at + i * n * size);
            }
            auto w = first;
            w.data = w_at + e * n * w.row_bytes();
            w.scales = packed ? s_at + e * scale_bytes : nullptr;
            w.biases = b_at != nullptr ? b_at + e * scale_bytes : nullptr;
            matmul::multiply({type, static_cast<long>(from.size()), from.data(), to.data()}, w);
          };
          std::vector<long> asked;
          for (long e = 0; e < experts; e++) {
            if (!rows[e].empty()) {
              asked.push_back(e);
            }
          }
          auto& threads = Threads::shared();
          if (static_cast<int>(asked.size()) < 4 * threads.count()) {
            // Few experts: the products run one after the other, and all threads share each one.
            for (long e : asked) {
              multiply(e);
            }
          } else {
            // Many experts: each thread multiplies whole matrices. Threads take tasks from the end of the list, so the
            // matrices with the most rows come last and start first.
            std::stable_sort(asked.begin(), asked.end(), [&](long a, long b) { return rows[a].size() < rows[b].size(); });
            threads.each(static_cast<uint32_t>(asked.size()), [&](uint32_t i) { multiply(asked[i]); });
          }
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    experts_on_cuda({in[0], in[1], {std::span(in).subspan(2)}, settings_.packing, -1}, out[0], stream());
  }
#endif

  // The gradients also multiply rows of the same expert together. MLX's derivative of gather_mm multiplies row by row
  // and writes a matrix gradient for each row before it adds them.
  Arrays derive(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs)
      override {
    const auto &x = primals[0], &indices = primals[1], &weight = primals[2];
    auto s = stream();
    auto dy = mx::astype(cotangents[0], mx::float32, s);
    Arrays wanted;
    for (int i : argnums) {
      if (i == 0) {
        auto wide = Parts::of(primals, 2, settings_.packing).in_f32(s);
        Parts turned{mx::contiguous(mx::swapaxes(wide, -1, -2, s), false, s), {}, {}, settings_.packing};
        auto dx = experts(dy, turned, indices, s);
        if (!dx) {
          return Node::derive(primals, cotangents, argnums, outputs);
        }
        wanted.push_back(mx::astype(*dx, x.dtype(), s));
      } else if (i == 2 && mx::issubdtype(weight.dtype(), mx::floating)) {
        auto expert = mx::flatten(indices, s);
        auto order = mx::argsort(expert, 0, s);
        auto sorted = [&](const mx::array& rows) {
          return mx::take(mx::reshape(rows, {-1, rows.shape(-1)}, s), order, 0, s);
        };
        auto columns = mx::swapaxes(sorted(dy), 0, 1, s);
        auto rows = sorted(mx::astype(x, mx::float32, s));
        // For each expert, the range [from, to) of its rows in the sorted order.
        auto all = mx::reshape(mx::arange(0, weight.shape(0), expert.dtype(), s), {-1, 1}, s);
        auto from = mx::sum(mx::less(expert, all, s), -1, false, s);
        auto to = mx::sum(mx::less_equal(expert, all, s), -1, false, s);
        auto ends = mx::astype(mx::stack({from, to}, -1, s), mx::uint32, s);
        wanted.push_back(mx::astype(mx::segmented_mm(columns, rows, ends, s), weight.dtype(), s));
      } else {
        return Node::derive(primals, cotangents, argnums, outputs);
      }
    }
    return wanted;
  }

  mx::array plain(const Arrays& in) override {
    return experts_plainly(in[0], Parts::of(in, 2, settings_.packing), in[1], stream());
  }

  const char* name() const override {
    return "ExpertsLinear";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape.back() = in[2].shape(1);
    return {shape};
  }
};

} // namespace

Arrays rows_and_indices(const mx::array& x, const mx::array& indices, mx::Stream s) {
  mx::Shape leading(x.shape().begin(), x.shape().end() - 2);
  leading = mx::broadcast_shapes(leading, indices.shape());
  auto shape = leading;
  shape.insert(shape.end(), {1, x.shape(-1)});
  return {mx::broadcast_to(x, shape, s), mx::broadcast_to(indices, leading, s)};
}

std::optional<Coded> experts_kind(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s) {
  bool usual = is_float(x.dtype()) && x.ndim() >= 2 && x.shape(-2) == 1 && x.shape(-1) > 0 && w.weight.ndim() == 3 &&
      indices.ndim() >= 1 && (indices.dtype() == mx::int32 || indices.dtype() == mx::uint32);
  if (!usual) {
    return std::nullopt;
  }
  int k = x.shape(-1);
  auto coding = x.dtype() == mx::float32 ? matmul::Coding::f32
      : x.dtype() == mx::float16         ? matmul::Coding::f16
                                         : matmul::Coding::bf16;
  if (!w.scales) {
    usual = w.weight.dtype() == x.dtype() && w.weight.shape(2) == k;
  } else {
    auto known = coding_of(w.packing.mode);
    usual = known && packs(k, x.dtype(), w);
    coding = known.value_or(coding);
  }
#ifdef MLXRS_CUDA
  usual = usual && (s.device == mx::Device::cpu || experts_fit_cuda(x, w, indices, s));
#else
  (void)s;
#endif
  return usual ? std::optional(Coded{coding, w.packing}) : std::nullopt;
}

std::optional<mx::array> experts(const mx::array& x, const Parts& w, const mx::array& indices, mx::Stream s) {
  auto kind = experts_kind(x, w, indices, s);
  if (!kind) {
    return std::nullopt;
  }
  auto inputs = rows_and_indices(x, indices, s);
  auto shape = inputs[0].shape();
  shape.back() = w.weight.shape(1);
  inputs.push_back(w.weight);
  if (w.scales) {
    inputs.push_back(*w.scales);
  }
  if (w.biases) {
    inputs.push_back(*w.biases);
  }
  return mx::array(std::move(shape), x.dtype(), std::make_shared<ExpertsLinear>(s, std::move(*kind)), std::move(inputs));
}

#else

// MLX's gathered products use Accelerate on Apple CPUs (see form.cpp).
std::optional<mx::array> experts(const mx::array&, const Parts&, const mx::array&, mx::Stream) {
  return std::nullopt;
}

#endif

} // namespace mlxrs::ops
