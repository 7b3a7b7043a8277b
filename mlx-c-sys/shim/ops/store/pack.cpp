// The node that packs vectors, which is the storage format of keys and values in a quantised KV cache.
#include "store.h"

namespace mlxrs::ops {
namespace {

class Pack : public NodeWith<RowPacking> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    const auto& x = in[0];
    auto& y = out[0];
    long n = x.shape(-1), words = y.shape(-1);
    dispatch(
        static_cast<uint32_t>(x.size() / n), 8.0 * x.size(),
        [=, packing = settings_, pack = row_kernels(x.dtype()).pack, from = Vectors(x), to = y.data<uint32_t>()](uint32_t v) {
          pack(from(v, workspace(n)), packing, n, to + v * words);
        });
  }

  mx::array plain(const Arrays& in) override {
    return pack_plainly(in[0], settings_, stream());
  }

  const char* name() const override {
    return "Pack";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape.back() = static_cast<int>(settings_.words(shape.back(), in[0].itemsize()));
    return {shape};
  }
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

} // namespace mlxrs::ops
