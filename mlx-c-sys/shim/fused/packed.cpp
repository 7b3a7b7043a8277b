// Packed vectors: what a quantised cache keeps of a key or a value.
#include "node.h"

namespace mlxrs::fused {
namespace {

class Pack : public Node {
 public:
  Pack(mx::Stream s, const RowPacking& packing) : Node(s), packing_(packing) {}

  void encode(const Arrays& in, Arrays& out) override {
    const auto& x = in[0];
    auto& y = out[0];
    y.set_data(mx::allocator::malloc(y.nbytes()));
    if (y.size() == 0) {
      return;
    }
    long n = x.shape(-1), words = y.shape(-1);
    dispatch(
        static_cast<uint32_t>(x.size() / n), 8.0 * x.size(),
        [=, packing = packing_, pack = row_kernels(x.dtype()).pack, from = Vectors(x), to = y.data<uint32_t>()](uint32_t v) {
          pack(from(v, workspace(n)), packing, n, to + v * words);
        });
  }

  mx::array plain(const Arrays& in) override {
    return pack_plainly(in[0], packing_, stream());
  }

  const char* name() const override {
    return "Pack";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    return packing_ == static_cast<const Pack&>(other).packing_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape.back() = static_cast<int>(packing_.words(shape.back(), in[0].itemsize()));
    return {shape};
  }

 private:
  RowPacking packing_;
};

} // namespace

RowPacking row_packing(int bits, int group) {
  bool known = (bits == 4 || bits == 8) && (group == 32 || group == 64 || group == 128);
  if (!known && (bits != 0 || group != 0)) {
    throw std::invalid_argument("packed vectors have codes of 4 or 8 bits, in groups of 32, 64 or 128");
  }
  return {bits, group};
}

int unpacked_size(const mx::array& words, const RowPacking& packing, mx::Dtype dtype) {
  int held = words.shape(-1);
  if (packing.bits == 0) {
    return held;
  }
  int of_group = static_cast<int>(packing.words(packing.group, mx::size_of(dtype)));
  return held % of_group == 0 ? held / of_group * packing.group : 0;
}

mx::array pack(const mx::array& x, const RowPacking& packing, mx::Stream s) {
  if (x.ndim() == 0 || !is_float(x.dtype()) || x.shape(-1) % packing.group != 0) {
    throw std::invalid_argument("pack: only vectors of f32, f16 or bf16 are packed, of whole groups");
  }
  auto node = std::make_shared<Pack>(s, packing);
  auto shape = node->output_shapes({x})[0];
  return mx::array(std::move(shape), mx::uint32, std::move(node), {x});
}

mx::array pack_plainly(const mx::array& x, const RowPacking& packing, mx::Stream s) {
  auto parts = mx::quantize(x, packing.group, packing.bits, "affine", std::nullopt, s);
  auto shape = parts[1].shape();
  shape.back() *= 2;
  auto factors = mx::reshape(mx::stack({parts[1], parts[2]}, -1, s), shape, s);
  return mx::concatenate({parts[0], mx::view(factors, mx::uint32, s)}, -1, s);
}

mx::array unpack_plainly(const mx::array& words, const RowPacking& packing, mx::Dtype dtype, mx::Stream s) {
  int n = unpacked_size(words, packing, dtype), codes = n * packing.bits / 32, groups = n / packing.group;
  if (words.dtype() != mx::uint32 || n == 0) {
    throw std::invalid_argument("unpack: these are no packed vectors of this type");
  }
  auto part = [&](const mx::array& a, int from, int to) {
    mx::Shape start(a.ndim(), 0), stop = a.shape();
    start.back() = from;
    stop.back() = to;
    return mx::slice(a, start, stop, s);
  };
  auto factors = mx::view(mx::contiguous(part(words, codes, words.shape(-1)), false, s), dtype, s);
  auto shape = factors.shape();
  shape.back() = groups;
  shape.push_back(2);
  // As the kernels: products and sums in f32, rounded once.
  factors = mx::astype(mx::reshape(factors, shape, s), mx::float32, s);
  auto of = [&](int i) { return mx::squeeze(part(factors, i, i + 1), -1, s); };
  auto wide = mx::dequantize(
      part(words, 0, codes), of(0), of(1), packing.group, packing.bits, "affine", std::nullopt, std::nullopt, s);
  return mx::astype(wide, dtype, s);
}

} // namespace mlxrs::fused
