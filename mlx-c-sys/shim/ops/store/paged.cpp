// The node that writes the keys and values of a flat step into pools of pages.
#include "paged.h"

#include "core/donate.h"
#include "fresh.h"

#ifdef MLXRS_CUDA
#include "cuda/launch.h"
#include "cuda/store.h"
#endif

namespace mlxrs::ops {
namespace {

// A pool [N, K, PAGE, D].
struct Pool {
  char* at;
  long heads, page;
  size_t vector;

  explicit Pool(mx::array& y)
      : at(y.data<char>()), heads(y.shape(1)), page(y.shape(2)), vector(y.shape(3) * y.itemsize()) {}

  char* place(long id, long head, long slot) const {
    return at + ((id * heads + head) * page + slot) * vector;
  }
};

// Inputs, in this order: the pools; new values unless there is one pool; starts, lens and tables; then the new keys, or the
// inputs of the projection that computes them; then the inputs of the projection of queries, if there is one. Outputs: the
// pools, and the heads of the queries.
class PagedStore : public Node {
 public:
  // The heads that the node computes.
  struct Computed {
    HeadsOptions keys;
    size_t key_inputs;
    std::optional<HeadsOptions> queries;

    bool operator==(const Computed&) const = default;
  };

  PagedStore(mx::Stream s, const PagedStoreOptions& options, size_t pools, std::optional<Computed> heads)
      : Node(s), options_(options), pools_(pools), heads_(heads) {}

  // Returns true without allocating: `encode` writes into the pools or copies them.
  bool allocate(const Arrays&, Arrays&) override {
    return true;
  }
  void encode(const Arrays& in, Arrays& out) override {
    auto all = given(in);
    if (!all.queries.empty()) {
      auto& y = out[pools_];
      y.set_data(mx::allocator::malloc(y.nbytes()));
      if (y.size() > 0) {
        dispatch(y.shape(0) * y.shape(2), 6.0 * y.size(), HeadsTasks(*heads_->queries, all.queries, y));
      }
    }
    for (size_t i = 0; i < pools_; i++) {
      begin(in, i, out[i]);
    }
    if (all.tokens() == 0) {
      return;
    }
    std::optional<Fresh> values;
    if (all.values != nullptr) {
      values.emplace(*all.values, options_.packing);
    }
    if (heads_) {
      write(TokenHeads(heads_->keys, all.keys), values, all, out);
    } else {
      write(Fresh(all.keys[0], options_.packing), values, all, out);
    }
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    auto all = given(in);
    for (size_t i = 0; i < pools_; i++) {
      if (options_.in_place && may_overwrite(in, i)) {
        note_written(in[i], stream());
        out[i].copy_shared_buffer(in[i]);
      } else {
        cuda::copy(in[i], out[i], stream());
      }
    }
    PagedOnCuda of{
        heads_ ? nullptr : &all.keys[0], {}, {}, all.values, {all.rows[0], all.rows[1], all.rows[2]}};
    if (heads_) {
      of.projection = {all.keys, heads_->keys};
      of.queries = {all.queries, heads_->queries.value_or(HeadsOptions{})};
    }
    paged_store_on_cuda(of, out, pools_, options_.packing, stream());
  }
#endif

  Arrays plain_all(const Arrays& in) override {
    auto all = given(in);
    PagedStoreInputs of{
        Arrays(in.begin(), in.begin() + static_cast<ptrdiff_t>(pools_)), std::nullopt, std::nullopt,
        all.values != nullptr ? std::make_optional(*all.values) : std::nullopt, FlatRows::of(all.rows)};
    if (heads_) {
      of.projection = Projection::of(all.keys, heads_->keys);
    } else {
      of.keys = all.keys[0];
    }
    if (!all.queries.empty()) {
      of.queries = Projection::of(all.queries, *heads_->queries);
    }
    return paged_store_plainly(of, options_, stream());
  }

  const char* name() const override {
    return "Store";
  }
  // Two nodes that write in place must not be merged into one.
  bool is_equivalent(const mx::Primitive&) const override {
    return false;
  }
  bool repeats(const mx::Primitive& other) const override {
    const auto& that = static_cast<const PagedStore&>(other);
    return options_ == that.options_ && pools_ == that.pools_ && heads_ == that.heads_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    std::vector<mx::Shape> shapes;
    for (size_t i = 0; i < pools_; i++) {
      shapes.push_back(in[i].shape());
    }
    if (auto queries = given(in).queries; !queries.empty()) {
      shapes.push_back(Projection::of(queries, *heads_->queries).shape());
    }
    return shapes;
  }

 private:
  // The inputs after the pools.
  struct Given {
    const mx::array* values; // null for latents
    std::span<const mx::array> rows, keys, queries;
    bool is_projection;

    // The number of tokens: the second axis of a projection, the third one of keys.
    int tokens() const {
      return keys[0].shape(is_projection ? 1 : 2);
    }
  };
  Given given(const Arrays& in) const {
    auto fresh = std::span<const mx::array>(in).subspan(pools_);
    const mx::array* values = pools_ > 1 ? &fresh[0] : nullptr;
    fresh = fresh.subspan(pools_ - 1);
    size_t keys = heads_ ? heads_->key_inputs : 1;
    return {values, fresh.first(3), fresh.subspan(3, keys), fresh.subspan(3 + keys), heads_.has_value()};
  }

  // Prepares output i: the pool itself (in place), or a copy of it.
  void begin(const Arrays& in, size_t i, mx::array& y) {
    if (options_.in_place && may_overwrite(in, i)) {
      note_written(in[i], stream());
      y.copy_shared_buffer(in[i]);
      return;
    }
    y.set_data(mx::allocator::malloc(y.nbytes()));
    Pool pool(y);
    dispatch(
        static_cast<uint32_t>(y.size() / y.shape(3)), y.size(),
        [=, from = Vectors(in[i])](uint32_t i) { from.copy(i, pool.at + i * pool.vector); });
  }

  // A task is one token with all its heads, as in a store without pages.
  template <typename Keys>
  void write(const Keys& keys, const std::optional<Fresh>& values, const Given& all, Arrays& out) {
    int tokens = all.tokens();
    std::vector<Pool> pools;
    double size = 0;
    for (size_t i = 0; i < pools_; i++) {
      pools.emplace_back(out[i]);
      size += double(out[i].shape(1)) * out[i].shape(3) * tokens;
    }
    Step step(all.rows, tokens, out[0].shape(0), out[0].shape(2));
    mx::cpu::get_command_encoder(stream()).dispatch([=] {
      // A new token is written, whatever queries see.
      step.check(1, 0, 0);
      share(static_cast<uint32_t>(step.begin(step.rows())), 10.0 * size, [&](uint32_t task) {
        int token = static_cast<int>(task), row = step.row_of(token);
        long position = step.position(row) + token - step.begin(row);
        long id = step.page_of(row, position), slot = step.slot_of(position);
        for (const auto& pool : pools) {
          for (long head = 0; head < pool.heads; head++) {
            fetch(pool.place(id, head, slot), pool.vector);
          }
        }
        keys(0, token, tokens, [&](long head) { return pools[0].place(id, head, slot); });
        if (values) {
          (*values)(0, token, tokens, [&](long head) { return pools[1].place(id, head, slot); });
        }
      });
    });
  }

  PagedStoreOptions options_;
  size_t pools_;
  std::optional<Computed> heads_;
};

// Whether the node computes the heads of a projection. The heads of a traced one have a derivative, which the node has not.
bool fits_node(const Projection& of, mx::Stream s) {
  return is_usual(of) && !is_traced({&of.x, of.weight ? &*of.weight : &of.x}) &&
      (s.device == mx::Device::cpu || (takes(s, of.x) && of.options.dim <= most_head));
}

} // namespace

std::optional<Arrays> paged_store(const PagedStoreInputs& of, const PagedStoreOptions& options, mx::Stream s) {
  if (s.device == mx::Device::gpu) {
#ifdef MLXRS_CUDA
    const auto& new_keys = of.keys ? *of.keys : of.projection->x;
    int dim = of.keys_shape()[3], value_dim = of.values ? of.values->shape(3) : 0;
    if (!takes(s, new_keys) || !store_fits_cuda(dim, value_dim, options.packing)) {
      return std::nullopt;
    }
#else
    return std::nullopt;
#endif
  }
  // The node that rotates keys cannot pack them.
  if (of.projection && (options.packing.bits > 0 || !fits_node(*of.projection, s))) {
    auto apart = of;
    apart.keys = heads_in_form(*of.projection, s);
    apart.projection = std::nullopt;
    apart.queries = std::nullopt;
    auto out = paged_store(apart, options, s);
    if (out && of.queries) {
      out->push_back(heads_in_form(*of.queries, s));
    }
    return out;
  }
  // Queries of another kind than the keys have a node of their own.
  if (of.queries && (!fits_node(*of.queries, s) || of.queries->x.dtype() != of.projection->x.dtype())) {
    auto apart = of;
    apart.queries = std::nullopt;
    auto out = paged_store(apart, options, s);
    if (out) {
      out->push_back(heads_in_form(*of.queries, s));
    }
    return out;
  }
  // At most two pools, values, three arrays of the rows, and four inputs of each projection.
  Arrays inputs;
  inputs.reserve(14);
  inputs = of.pools;
  if (of.values) {
    inputs.push_back(*of.values);
  }
  of.rows.append(inputs);
  std::vector<mx::Shape> results;
  std::vector<mx::Dtype> types;
  for (const auto& pool : of.pools) {
    results.push_back(pool.shape());
    types.push_back(pool.dtype());
  }
  std::optional<PagedStore::Computed> computed;
  if (of.projection) {
    of.projection->append(inputs, s);
    computed = {of.projection->options, of.projection->weight ? 4u : 3u, std::nullopt};
  } else {
    inputs.push_back(*of.keys);
  }
  if (of.queries) {
    of.queries->append(inputs, s);
    computed->queries = of.queries->options;
    results.push_back(of.queries->shape());
    types.push_back(of.queries->x.dtype());
  }
  auto node = std::make_shared<PagedStore>(s, options, of.pools.size(), std::move(computed));
  return mx::array::make_arrays(std::move(results), types, node, std::move(inputs));
}

} // namespace mlxrs::ops
