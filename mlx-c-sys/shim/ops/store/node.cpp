// The node that writes new keys and values into the buffers of a KV cache, at slots that follow from their positions.
#include <array>
#include <cstring>

#include "core/donate.h"
#include "fresh.h"

#ifdef MLXRS_CUDA
#include "cuda/launch.h"
#include "cuda/store.h"
#endif

namespace mlxrs::ops {
namespace {

// The slots of a step's tokens. Position p is in slot p, or in slot p mod S of a ring.
struct Slots {
  const int32_t* at;
  int64_t step;
  long slots, tokens;
  bool ring;

  // The slot of a token. Returns -1 for a token that is not written, because a later token has the same slot or the
  // slot is outside the buffer.
  long of(long row, long token) const {
    long position = at[row * step] + token;
    if (ring) {
      return token + slots < tokens ? -1 : (position % slots + slots) % slots;
    }
    return position < slots ? std::max(position, -1L) : -1;
  }

  // Calls body(first, end) for each range of a row's slots that this step does not write.
  template <typename Body>
  void each_unwritten(long row, const Body& body) const {
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

// A key buffer or a value buffer: [B, K, S, D].
struct Buffer {
  char* at;
  uint32_t heads;
  size_t vector;

  explicit Buffer(mx::array& y) : at(y.data<char>()), heads(y.shape(1)), vector(y.shape(3) * y.itemsize()) {}

  char* place(const Slots& slots, long row, long head, long slot) const {
    return at + ((row * heads + head) * slots.slots + slot) * vector;
  }
};

// Inputs, in this order: both buffers [B, K, S, D] unless they are new; new values [B, K, L, D]; the position of each
// row's first token; then the new keys, or the inputs of the projection that computes them; then the inputs of the projection
// of queries, if there is one. Outputs: both buffers, and the heads of the queries.
class Store : public Node {
 public:
  // The heads that the node computes.
  struct Computed {
    HeadsOptions keys;
    size_t key_inputs;
    std::optional<HeadsOptions> queries;

    bool operator==(const Computed&) const = default;
  };

  // `blank` has the shapes of new buffers. `heads` is given if keys are computed from a projection.
  Store(
      mx::Stream s, const StoreOptions& options, std::optional<std::array<mx::Shape, 2>> blank,
      std::optional<Computed> heads)
      : Node(s), options_(options), blank_(std::move(blank)), heads_(heads) {}

  // Returns true without allocating: `encode` writes into an input buffer or allocates a new one.
  bool allocate(const Arrays&, Arrays&) override {
    return true;
  }
  void encode(const Arrays& in, Arrays& out) override {
    auto [v, offsets, keys, queries] = given(in);
    if (!queries.empty()) {
      auto& y = out[2];
      y.set_data(mx::allocator::malloc(y.nbytes()));
      if (y.size() > 0) {
        dispatch(y.shape(0) * y.shape(2), 6.0 * y.size(), HeadsTasks(*heads_->queries, queries, y));
      }
    }
    Slots slots{offsets.data<int32_t>(), offsets.size() > 1 ? offsets.strides(0) : 0, out[0].shape(2), v.shape(2), options_.ring};
    for (size_t i = 0; i < 2; i++) {
      begin(in, i, out[i], slots);
    }
    if (out[0].size() == 0 || out[1].size() == 0 || v.size() == 0) {
      return;
    }
    if (heads_) {
      write(TokenHeads(heads_->keys, keys), v, out, slots);
    } else {
      write(Fresh(keys[0], options_.packing), v, out, slots);
    }
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    auto [v, offsets, keys, queries] = given(in);
    for (size_t i = 0; i < 2; i++) {
      if (!blank_ && options_.in_place && may_overwrite(in, i)) {
        note_written(in[i], stream());
        out[i].copy_shared_buffer(in[i]);
      } else if (!blank_) {
        cuda::copy(in[i], out[i], stream());
      } else {
        cuda::allocate(out[i], stream());
        cuda::fill_with_zeros(out[i], stream());
      }
    }
    if (!heads_) {
      store_on_cuda(keys[0], v, offsets, out, options_, stream());
    } else {
      store_heads_on_cuda({keys, heads_->keys}, {queries, heads_->queries.value_or(HeadsOptions{})}, v, out, options_, stream());
    }
  }
#endif

  Arrays plain_all(const Arrays& in) override {
    auto [v, offsets, keys, queries] = given(in);
    StoreInputs of{std::nullopt, blank_ ? (*blank_)[0][2] : 0, std::nullopt, std::nullopt, v, offsets};
    if (!blank_) {
      of.buffers = {in[0], in[1]};
    }
    if (heads_) {
      of.projection = Projection::of(keys, heads_->keys);
    } else {
      of.keys = keys[0];
    }
    if (!queries.empty()) {
      of.queries = Projection::of(queries, *heads_->queries);
    }
    return store_plainly(of, options_, stream());
  }

  const char* name() const override {
    return "Store";
  }
  // Two nodes that write in place must not be merged into one.
  bool is_equivalent(const mx::Primitive&) const override {
    return false;
  }
  bool repeats(const mx::Primitive& other) const override {
    const auto& that = static_cast<const Store&>(other);
    return options_ == that.options_ && blank_ == that.blank_ && heads_ == that.heads_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shapes = blank_ ? std::vector<mx::Shape>{(*blank_)[0], (*blank_)[1]}
                         : std::vector<mx::Shape>{in[0].shape(), in[1].shape()};
    if (auto queries = given(in).queries; !queries.empty()) {
      shapes.push_back(Projection::of(queries, *heads_->queries).shape());
    }
    return shapes;
  }

 private:
  // The inputs after the buffers.
  struct Given {
    const mx::array &values, &offsets;
    std::span<const mx::array> keys, queries;
  };
  Given given(const Arrays& in) const {
    std::span<const mx::array> all = in;
    auto fresh = all.subspan(blank_ ? 0 : 2);
    size_t keys = heads_ ? heads_->key_inputs : 1;
    return {fresh[0], fresh[1], fresh.subspan(2, keys), fresh.subspan(2 + keys)};
  }

  // Prepares output i: the input buffer itself (in place), a copy of it, or a new buffer whose unwritten slots are
  // zeros.
  void begin(const Arrays& in, size_t i, mx::array& y, const Slots& slots) {
    if (!blank_ && options_.in_place && may_overwrite(in, i)) {
      note_written(in[i], stream());
      y.copy_shared_buffer(in[i]);
      return;
    }
    y.set_data(mx::allocator::malloc(y.nbytes()));
    if (y.size() == 0) {
      return;
    }
    Buffer buffer(y);
    if (!blank_) {
      dispatch(
          static_cast<uint32_t>(y.size() / y.shape(3)), y.size(),
          [=, from = Vectors(in[i])](uint32_t i) { from.copy(i, buffer.at + i * buffer.vector); });
    } else if (2 * slots.tokens < slots.slots) {
      // Few slots are written. The zeroed pages of the others take no memory.
      mx::cpu::get_command_encoder(stream()).dispatch([at = buffer.at, n = y.nbytes()] { fill_with_zeros(at, n); });
    } else {
      dispatch(static_cast<uint32_t>(y.shape(0) * y.shape(1)), y.size(), [=](uint32_t i) {
        long row = i / buffer.heads, head = i % buffer.heads;
        slots.each_unwritten(row, [&](long begin, long end) {
          std::memset(buffer.place(slots, row, head, begin), 0, (end - begin) * buffer.vector);
        });
      });
    }
  }

  template <typename Keys>
  void write(const Keys& keys, const mx::array& v, Arrays& out, const Slots& slots) {
    // A task is one token with all its heads. The heads' slots are far apart in memory, so their cache lines are
    // prefetched while the heads are computed.
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
  std::optional<std::array<mx::Shape, 2>> blank_;
  std::optional<Computed> heads_;
};

} // namespace

std::array<mx::Shape, 2> buffer_shapes(const StoreInputs& of, const RowPacking& packing) {
  auto type = of.keys ? of.keys->dtype() : of.projection->x.dtype();
  std::array<mx::Shape, 2> fresh{of.keys_shape(), of.values.shape()}, shapes;
  for (size_t i = 0; i < 2; i++) {
    bool fits = fresh[i].size() == 4 && is_float(type) && of.values.dtype() == type && fresh[i][0] == fresh[0][0] &&
        fresh[i][2] == fresh[0][2] && (packing.bits == 0 || fresh[i][3] % packing.group == 0);
    if (fits && !of.buffers) {
      shapes[i] = fresh[i];
      shapes[i][2] = of.slots;
      shapes[i][3] = packing.bits == 0 ? fresh[i][3] : static_cast<int>(packing.words(fresh[i][3], mx::size_of(type)));
    } else if (fits) {
      const auto& buffer = (*of.buffers)[i];
      shapes[i] = buffer.shape();
      fits = buffer.ndim() == 4 && buffer.dtype() == (packing.bits > 0 ? mx::uint32 : type) &&
          shapes[i][0] == fresh[i][0] && shapes[i][1] == fresh[i][1] &&
          unpacked_size(buffer, packing, type) == fresh[i][3] && shapes[i][2] == shapes[0][2] && shapes[i][2] > 0;
    }
    if (!fits) {
      throw std::invalid_argument("store: the buffers of a cache and new keys or values do not fit each other");
    }
  }
  const auto& offsets = of.offsets;
  if (offsets.dtype() != mx::int32 || offsets.ndim() > 1 ||
      (offsets.size() != 1 && offsets.size() != static_cast<size_t>(shapes[0][0]))) {
    throw std::invalid_argument("store: offsets must be I32 of one number, or of one a row");
  }
  return shapes;
}

namespace {

// Whether one node can compute the heads of queries and keys.
bool fits_keys(const Projection& queries, const Projection& keys, mx::Stream s) {
  return is_usual(queries) && queries.x.dtype() == keys.x.dtype() && !is_traced({&queries.x, queries.weight ? &*queries.weight : &queries.x}) &&
      (s.device == mx::Device::cpu || (takes(s, queries.x) && queries.options.dim <= most_head));
}

} // namespace

std::optional<Arrays> store(const StoreInputs& of, const StoreOptions& options, mx::Stream s) {
#ifdef MLXRS_CUDA
  if (s.device == mx::Device::gpu) {
    buffer_shapes(of, options.packing);
    if (!takes(s, of.values) || !store_fits_cuda(of.keys_shape()[3], of.values.shape(3), options.packing)) {
      return std::nullopt;
    }
  }
#endif
  if (of.projection) {
    const auto& keys = *of.projection;
    // The node that rotates keys cannot pack them, so packed caches and traced inputs use two nodes.
    bool joined = options.packing.bits == 0 && is_usual(keys) &&
        !is_traced({&keys.x, keys.weight ? &*keys.weight : &keys.x});
    if (!joined) {
      auto apart = of;
      auto made = heads(keys, s);
      apart.keys = made ? *made : heads_plainly(keys, s);
      apart.projection = std::nullopt;
      apart.queries = std::nullopt;
      auto out = store(apart, options, s);
      if (out && of.queries) {
        out->push_back(heads_in_form(*of.queries, s));
      }
      return out;
    }
  }
  // Queries of another kind than the keys have a node of their own.
  if (of.queries && !fits_keys(*of.queries, *of.projection, s)) {
    auto apart = of;
    apart.queries = std::nullopt;
    auto out = store(apart, options, s);
    if (out) {
      out->push_back(heads_in_form(*of.queries, s));
    }
    return out;
  }
  auto shapes = buffer_shapes(of, options.packing);
  auto type = options.packing.bits > 0 ? mx::uint32 : of.values.dtype();
  Arrays inputs;
  // At most two buffers, values and offsets, and four inputs of each projection.
  inputs.reserve(12);
  if (of.buffers) {
    inputs.insert(inputs.end(), of.buffers->begin(), of.buffers->end());
  }
  inputs.insert(inputs.end(), {of.values, of.offsets});
  if (of.keys) {
    inputs.push_back(*of.keys);
  } else {
    of.projection->append(inputs, s);
  }
  std::vector<mx::Shape> results(shapes.begin(), shapes.end());
  std::vector<mx::Dtype> types(2, type);
  std::optional<Store::Computed> computed;
  if (of.projection) {
    computed = {of.projection->options, of.projection->weight ? 4u : 3u, std::nullopt};
  }
  if (of.queries) {
    of.queries->append(inputs, s);
    computed->queries = of.queries->options;
    results.push_back(of.queries->shape());
    types.push_back(of.queries->x.dtype());
  }
  auto node = std::make_shared<Store>(s, options, of.buffers ? std::nullopt : std::make_optional(shapes), std::move(computed));
  return mx::array::make_arrays(std::move(results), types, node, std::move(inputs));
}

} // namespace mlxrs::ops
