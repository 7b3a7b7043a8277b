// The nodes that read rows of a matrix, or a whole matrix, and unpack them.
#include "lookup.h"
#include "core/checked.h"
#include "ops/linear/operands.h"

#ifdef MLXRS_CUDA
#include "cuda/lookup.h"
#endif

namespace mlxrs::ops {

#ifndef __APPLE__

namespace {

struct LookupSettings {
  Coded coded;
  mx::Dtype dtype;

  bool operator==(const LookupSettings& that) const {
    return coded == that.coded && dtype == that.dtype;
  }
};

// The rows that `indices` select, unpacked. Inputs: the indices, the matrix, and optionally scales and biases.
class Lookup : public NodeWith<LookupSettings> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    const auto& [coding, packing] = settings_.coded;
    const auto &indices = in[0], &weight = in[1];
    auto& y = out[0];
    bool packed = in.size() > 2, affine = in.size() > 3;
    const auto& scales = packed ? in[2] : weight;
    int bits = packed ? packing.bits : static_cast<int>(weight.itemsize()) * 8;
    matmul::Weights w{coding, bits, packed ? packing.group : 0, weight.shape(0), y.shape(-1), nullptr,
                      float_of(scales.dtype()), nullptr, nullptr};
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, type = float_of(settings_.dtype), weight = RowMajor(weight), scales = RowMajor(scales),
         biases = RowMajor(affine ? in[3] : weight), at = indices.data<char>(), of = Rows(indices),
         is_signed = indices.dtype() == mx::int32, m = static_cast<long>(indices.size()),
         wide = static_cast<long>(indices.ndim() > 0 ? indices.shape(-1) : 1), y_at = y.data<char>()]() mutable {
          std::vector<char> w_copy, s_copy, b_copy;
          w.data = weight.get(w_copy);
          w.scales = packed ? scales.get(s_copy) : nullptr;
          w.biases = affine ? biases.get(b_copy) : nullptr;
          std::vector<long> rows(m);
          for (long i = 0; i < m; i++) {
            uint32_t given;
            std::memcpy(&given, at + (of(static_cast<uint32_t>(i / wide)) + i % wide * of.step()) * 4, 4);
            long row = is_signed ? static_cast<int32_t>(given) : static_cast<long>(given);
            // A negative index counts from the end, as in MLX's `take`.
            rows[i] = row < 0 ? row + w.n : row;
            if (rows[i] < 0 || rows[i] >= w.n) {
              throw std::out_of_range(row_error(row, w.n));
            }
          }
          matmul::write_rows(w, rows, type, y_at);
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    lookup_on_cuda(&in[0], std::span(in).subspan(1), settings_.coded.packing, out[0], stream());
  }
#endif

  mx::array plain(const Arrays& in) override {
    return lookup_plainly(in[0], Parts::of(in, 1, settings_.coded.packing), settings_.dtype, stream());
  }

  const char* name() const override {
    return "Lookup";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    bool packed = in.size() > 2;
    shape.push_back(packed ? in[1].shape(1) * 32 / settings_.coded.packing.bits : in[1].shape(1));
    return {shape};
  }
};

// A whole quantised matrix, unpacked on a GPU. The inputs are its parts.
class Expanded : public NodeWith<LookupSettings> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays&, Arrays&) override {
    throw std::logic_error("matrices are expanded on GPUs only");
  }
#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    lookup_on_cuda(nullptr, in, settings_.coded.packing, out[0], stream());
  }
#endif
  mx::array plain(const Arrays& in) override {
    auto [group, bits, mode] = settings_.coded.packing;
    auto biases = in.size() > 2 ? std::make_optional(in[2]) : std::nullopt;
    return mx::dequantize(in[0], in[1], biases, group, bits, mode, std::nullopt, settings_.dtype, stream());
  }
  const char* name() const override {
    return "Expanded";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {{in[0].shape(0), in[0].shape(1) * 32 / settings_.coded.packing.bits}};
  }
};

} // namespace

mx::array expanded(const Parts& w, const Coded& coded, mx::Dtype dtype, mx::Stream s) {
  auto node = std::make_shared<Expanded>(s, LookupSettings{coded, dtype});
  Arrays inputs{w.weight, *w.scales};
  if (w.biases) {
    inputs.push_back(*w.biases);
  }
  auto shape = node->output_shapes(inputs)[0];
  return mx::array(std::move(shape), dtype, std::move(node), std::move(inputs));
}

std::optional<mx::array> lookup(const mx::array& indices, const Parts& w, mx::Dtype dtype, mx::Stream s) {
  const auto& weight = w.weight;
  bool usual = (indices.dtype() == mx::int32 || indices.dtype() == mx::uint32) && weight.ndim() == 2 && is_float(dtype);
  std::optional<matmul::Coding> coding;
  Arrays inputs{indices, weight};
  int64_t wide = usual ? weight.shape(1) : 0;
  if (usual && !w.scales) {
    auto type = weight.dtype();
    usual = type == dtype && is_float(type);
    coding = type == mx::float32 ? matmul::Coding::f32 : type == mx::float16 ? matmul::Coding::f16 : matmul::Coding::bf16;
  } else if (usual) {
    coding = coding_of(w.packing.mode);
    wide = w.packing.bits > 0 ? wide * 32 / w.packing.bits : 0;
    inputs.push_back(*w.scales);
    if (w.biases) {
      inputs.push_back(*w.biases);
    }
    usual = coding && packs(wide, mx::float32, w);
  }
  if (s.device == mx::Device::gpu) {
    bool is_own = !w.scales || w.packing.mode != "affine" || (w.packing.bits > 1 && w.scales->dtype() == dtype);
    usual = usual && is_own && dtype != mx::float32 && wide % 32 == 0 && indices.size() > 0 && !indices.is_tracer();
  }
  if (!usual || wide == 0) {
    return std::nullopt;
  }
  auto shape = indices.shape();
  shape.push_back(static_cast<int>(wide));
  return mx::array(
      std::move(shape), dtype, std::make_shared<Lookup>(s, LookupSettings{{*coding, w.packing}, dtype}), std::move(inputs));
}

#else

// MLX's gathers use Accelerate on Apple CPUs (see form.cpp).
std::optional<mx::array> lookup(const mx::array&, const Parts&, mx::Dtype, mx::Stream) {
  return std::nullopt;
}

#endif

} // namespace mlxrs::ops
