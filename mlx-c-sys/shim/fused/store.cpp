// New keys and values go into the cache: both buffers in one node, by positions, and in place.
#include <cstring>

#include "../donate.h"
#include "node.h"

namespace mlxrs::fused {
namespace {

// Inputs: both buffers [B, K, S, D], what is new [B, K, L, D], and the position of each row's first token. Position p goes
// to slot p, or p mod S when the buffers are rings. Vectors are packed on their way, where there is a packing.
class Store : public Node {
 public:
  Store(mx::Stream s, const RowPacking& packing, bool ring, bool in_place)
      : Node(s), packing_(packing), ring_(ring), in_place_(in_place) {}

  void encode(const Arrays& in, Arrays& out) override {
    for (size_t i = 0; i < 2; i++) {
      const auto &buffer = in[i], &fresh = in[2 + i];
      auto& y = out[i];
      std::shared_ptr<Vectors> copy;
      if (in_place_ && may_overwrite(in, i)) {
        note_written(buffer, stream());
        y.copy_shared_buffer(buffer);
      } else {
        y.set_data(mx::allocator::malloc(y.nbytes()));
        copy = std::make_shared<Vectors>(buffer);
      }
      if (y.size() == 0) {
        continue;
      }
      size_t vector = y.shape(3) * y.itemsize();
      long heads = y.shape(1), slots = y.shape(2), tokens = fresh.shape(2);
      auto put = [=](char* to, const char* from) {
        if (from != to) {
          std::memcpy(to, from, vector);
        }
      };
      if (copy != nullptr) {
        dispatch(static_cast<uint32_t>(y.size() / y.shape(3)), y.size(), [=, to = y.data<char>()](uint32_t v) {
          put(to + v * vector, (*copy)(v, to + v * vector));
        });
      }
      if (tokens == 0) {
        continue;
      }
      auto pack = packing_.bits > 0 ? row_kernels(fresh.dtype()).pack : nullptr;
      dispatch(
          static_cast<uint32_t>(fresh.size() / fresh.shape(3)), fresh.size(),
          [=, packing = packing_, n = fresh.shape(3), from = Vectors(fresh), to = y.data<char>(), at = in[4].data<int32_t>(),
           step = in[4].size() > 1 ? in[4].strides(0) : 0, ring = ring_](uint32_t v) {
            long token = v % tokens, head = v / tokens, slot = at[head / heads * step] + token;
            slot = ring ? slot % slots : slot;
            // Of several tokens for one slot the last stays; slots that are not there take none.
            if (slot < slots && (!ring || token + slots >= tokens)) {
              char* place = to + (head * slots + slot) * vector;
              if (pack != nullptr) {
                pack(from(v, workspace(n)), packing, n, reinterpret_cast<uint32_t*>(place));
              } else {
                put(place, from(v, place));
              }
            }
          });
    }
  }

  Arrays plain_all(const Arrays& in) override {
    auto s = stream();
    int tokens = in[2].shape(2), slots = in[0].shape(2);
    auto places = mx::add(
        mx::reshape(in[4], {-1, 1, 1, 1}, s), mx::reshape(mx::arange(0, tokens, 1, mx::int32, s), {1, 1, tokens, 1}, s), s);
    if (ring_) {
      places = mx::remainder(places, mx::array(slots, mx::int32), s);
    }
    Arrays out;
    for (size_t i = 0; i < 2; i++) {
      auto fresh = packing_.bits > 0 ? pack_plainly(in[2 + i], packing_, s) : in[2 + i];
      auto index = mx::broadcast_to(places, fresh.shape(), s);
      out.push_back(mx::put_along_axis(in[i], index, fresh, 2, s));
    }
    return out;
  }

  const char* name() const override {
    return "Store";
  }
  // Nodes that write in place are not to be merged.
  bool is_equivalent(const mx::Primitive&) const override {
    return false;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[0].shape(), in[1].shape()};
  }

 private:
  RowPacking packing_;
  bool ring_, in_place_;
};

} // namespace

Arrays store(const Arrays& in, const RowPacking& packing, bool ring, bool in_place, mx::Stream s) {
  for (size_t i = 0; i < 2; i++) {
    const auto &buffer = in[i], &fresh = in[2 + i];
    bool fits = buffer.ndim() == 4 && fresh.ndim() == 4 && is_float(fresh.dtype()) &&
        buffer.dtype() == (packing.bits > 0 ? mx::uint32 : fresh.dtype()) && buffer.shape(0) == fresh.shape(0) &&
        buffer.shape(1) == fresh.shape(1) && unpacked_size(buffer, packing, fresh.dtype()) == fresh.shape(3) &&
        fresh.shape(2) == in[2].shape(2) && buffer.shape(2) == in[0].shape(2) && buffer.shape(2) > 0;
    if (!fits) {
      throw std::invalid_argument("store: the buffers of a cache and what is new do not fit each other");
    }
  }
  const auto& offsets = in[4];
  if (offsets.dtype() != mx::int32 || offsets.ndim() > 1 ||
      (offsets.size() != 1 && offsets.size() != static_cast<size_t>(in[0].shape(0)))) {
    throw std::invalid_argument("store: offsets must be I32 of one number, or of one a row");
  }
  auto node = std::make_shared<Store>(s, packing, ring, in_place);
  return mx::array::make_arrays({in[0].shape(), in[1].shape()}, {in[0].dtype(), in[1].dtype()}, node, in);
}

Arrays store_plainly(const Arrays& in, const RowPacking& packing, bool ring, mx::Stream s) {
  return Store(s, packing, ring, false).plain_all(in);
}

} // namespace mlxrs::fused
