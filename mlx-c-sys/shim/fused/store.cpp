// New keys and values go into the cache: both buffers in one node, by positions, and in place.
#include <array>
#include <cstring>

#include "../donate.h"
#include "heads.h"
#include "node.h"

namespace mlxrs::fused {
namespace {

// Where the tokens of a step go: position p to slot p, or p mod S when the buffers are rings.
struct Slots {
  const int32_t* at;
  int64_t step;
  long slots, tokens;
  bool ring;

  // The slot of a token, or -1: of several tokens for one slot the last stays, and slots that are not there take none.
  long of(long row, long token) const {
    long position = at[row * step] + token;
    if (ring) {
      return token + slots < tokens ? -1 : (position % slots + slots) % slots;
    }
    return position < slots ? std::max(position, -1L) : -1;
  }

  // Calls body(first, end) for the slots of a row that no token takes.
  template <typename Body>
  void each_other(long row, const Body& body) const {
    long begin = at[row * step], end = begin + tokens;
    if (ring && tokens >= slots) {
      return;
    }
    if (ring) {
      begin = (begin % slots + slots) % slots;
      end = begin + tokens;
      if (end > slots) {
        return body(end - slots, begin);
      }
    }
    body(0, std::clamp(begin, 0L, slots));
    body(std::clamp(end, 0L, slots), slots);
  }
};

// One of the two buffers: [B, K, S, D].
struct Buffer {
  char* at;
  uint32_t heads;
  size_t vector;

  explicit Buffer(mx::array& y) : at(y.data<char>()), heads(y.shape(1)), vector(y.shape(3) * y.itemsize()) {}

  char* place(const Slots& slots, long row, long head, long slot) const {
    return at + ((row * heads + head) * slots.slots + slot) * vector;
  }
};

// Brings lines near that will be written.
void fetch(const char* at, size_t n) {
  for (size_t i = 0; i < n; i += 64) {
    __builtin_prefetch(at + i, 1);
  }
}

// Vectors [B, K, L, D] on their way into a buffer, packed where there is a packing.
class Fresh {
 public:
  Fresh(const mx::array& fresh, const RowPacking& packing)
      : from_(fresh), n_(fresh.shape(3)), heads_(fresh.shape(1)), packing_(packing),
        pack_(packing.bits > 0 ? row_kernels(fresh.dtype()).pack : nullptr) {}

  // Writes head h of a row's token to to(h).
  template <typename To>
  void operator()(long row, long token, long tokens, const To& to) const {
    for (uint32_t head = 0; head < heads_; head++) {
      auto i = static_cast<uint32_t>((row * heads_ + head) * tokens + token);
      char* y = to(head);
      if (pack_ != nullptr) {
        pack_(from_(i, workspace(n_)), packing_, n_, reinterpret_cast<uint32_t*>(y));
      } else {
        from_.copy(i, y);
      }
    }
  }

 private:
  Vectors from_;
  long n_;
  uint32_t heads_;
  RowPacking packing_;
  decltype(RowKernels::pack) pack_;
};

struct StoreOptions {
  RowPacking packing;
  bool ring, in_place;
  // Where the buffers are not inputs but begin as zeros.
  std::optional<std::array<mx::Shape, 2>> blank;
  // Where keys are not an input, but what they are made of.
  std::optional<HeadsOptions> heads;
};

// Inputs: both buffers [B, K, S, D], unless they begin as zeros; new values [B, K, L, D]; the position of each row's first
// token; new keys, or what they are made of.
class Store : public Node {
 public:
  Store(mx::Stream s, StoreOptions options) : Node(s), options_(std::move(options)) {}

  void encode(const Arrays& in, Arrays& out) override {
    auto [v, offsets, keys] = given(in);
    Slots slots{offsets.data<int32_t>(), offsets.size() > 1 ? offsets.strides(0) : 0, out[0].shape(2), v.shape(2), options_.ring};
    for (size_t i = 0; i < 2; i++) {
      begin(in, i, out[i], slots);
    }
    if (out[0].size() == 0 || out[1].size() == 0 || v.size() == 0) {
      return;
    }
    if (options_.heads) {
      write(TokenHeads(*options_.heads, keys), v, out, slots);
    } else {
      write(Fresh(keys[0], options_.packing), v, out, slots);
    }
  }

  Arrays plain_all(const Arrays& in) override {
    auto s = stream();
    auto [v, offsets, keys] = given(in);
    auto k = options_.heads ? heads_plainly(*options_.heads, keys, s) : keys[0];
    auto type = options_.packing.bits > 0 ? mx::uint32 : v.dtype();
    auto buffer = [&](size_t i) { return options_.blank ? mx::zeros((*options_.blank)[i], type, s) : in[i]; };
    return store_plainly({buffer(0), buffer(1), k, v, offsets}, options_.packing, options_.ring, s);
  }

  const char* name() const override {
    return "Store";
  }
  // Nodes that write in place are not to be merged.
  bool is_equivalent(const mx::Primitive&) const override {
    return false;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return options_.blank ? std::vector<mx::Shape>{(*options_.blank)[0], (*options_.blank)[1]}
                          : std::vector<mx::Shape>{in[0].shape(), in[1].shape()};
  }

 private:
  // What is behind the buffers in the inputs.
  struct Given {
    const mx::array &values, &offsets;
    Arrays keys;
  };
  Given given(const Arrays& in) const {
    auto first = in.begin() + (options_.blank ? 0 : 2);
    return {first[0], first[1], {first + 2, in.end()}};
  }

  // Gives a buffer memory, with all that is in it before.
  void begin(const Arrays& in, size_t i, mx::array& y, const Slots& slots) {
    if (!options_.blank && options_.in_place && may_overwrite(in, i)) {
      note_written(in[i], stream());
      y.copy_shared_buffer(in[i]);
      return;
    }
    y.set_data(mx::allocator::malloc(y.nbytes()));
    if (y.size() == 0) {
      return;
    }
    Buffer buffer(y);
    if (!options_.blank) {
      dispatch(
          static_cast<uint32_t>(y.size() / y.shape(3)), y.size(),
          [=, from = Vectors(in[i])](uint32_t i) { from.copy(i, buffer.at + i * buffer.vector); });
    } else if (2 * slots.tokens < slots.slots) {
      // Most of it may never be touched.
      mx::cpu::get_command_encoder(stream()).dispatch([at = buffer.at, n = y.nbytes()] { fill_with_zeros(at, n); });
    } else {
      dispatch(static_cast<uint32_t>(y.shape(0) * y.shape(1)), y.size(), [=](uint32_t i) {
        long row = i / buffer.heads, head = i % buffer.heads;
        slots.each_other(row, [&](long begin, long end) {
          std::memset(buffer.place(slots, row, head, begin), 0, (end - begin) * buffer.vector);
        });
      });
    }
  }

  template <typename Keys>
  void write(const Keys& keys, const mx::array& v, Arrays& out, const Slots& slots) {
    // A task is a token with all its heads. These go far apart: where to is fetched while they are computed.
    dispatch(
        static_cast<uint32_t>(v.shape(0) * slots.tokens), 10.0 * v.size(),
        [=, k_to = Buffer(out[0]), v_to = Buffer(out[1]), values = Fresh(v, options_.packing)](uint32_t task) {
          long row = task / slots.tokens, token = task % slots.tokens, slot = slots.of(row, token);
          if (slot < 0) {
            return;
          }
          for (long head = 0; head < k_to.heads; head++) {
            fetch(k_to.place(slots, row, head, slot), k_to.vector);
            fetch(v_to.place(slots, row, head, slot), v_to.vector);
          }
          keys(row, token, slots.tokens, [&](long head) { return k_to.place(slots, row, head, slot); });
          values(row, token, slots.tokens, [&](long head) { return v_to.place(slots, row, head, slot); });
        });
  }

  StoreOptions options_;
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
  StoreOptions options{packing, ring, in_place, std::nullopt, std::nullopt};
  Arrays inputs;
  if (is_blank(in[0], s) && is_blank(in[1], s)) {
    options.blank = {in[0].shape(), in[1].shape()};
  } else {
    inputs = {in[0], in[1]};
  }
  inputs.push_back(in[3]);
  inputs.push_back(offsets);
  if (auto made = packing.bits == 0 ? made_heads(in[2], s) : std::nullopt) {
    options.heads = made->options;
    inputs.insert(inputs.end(), made->in.begin(), made->in.end());
  } else {
    inputs.push_back(in[2]);
  }
  auto node = std::make_shared<Store>(s, std::move(options));
  return mx::array::make_arrays({in[0].shape(), in[1].shape()}, {in[0].dtype(), in[1].dtype()}, node, inputs);
}

Arrays store_plainly(const Arrays& in, const RowPacking& packing, bool ring, mx::Stream s) {
  int tokens = in[2].shape(2), slots = in[0].shape(2);
  auto places = mx::add(
      mx::reshape(in[4], {-1, 1, 1, 1}, s), mx::reshape(mx::arange(0, tokens, 1, mx::int32, s), {1, 1, tokens, 1}, s), s);
  if (ring) {
    places = mx::remainder(places, mx::array(slots, mx::int32), s);
  }
  Arrays out;
  for (size_t i = 0; i < 2; i++) {
    auto fresh = packing.bits > 0 ? pack_plainly(in[2 + i], packing, s) : in[2 + i];
    auto index = mx::broadcast_to(places, fresh.shape(), s);
    out.push_back(mx::put_along_axis(in[i], index, fresh, 2, s));
  }
  return out;
}

} // namespace mlxrs::fused
