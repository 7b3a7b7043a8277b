// The node of attention in a flat step, and what its operands must be.
#include "flat.h"
#include "plan.h"

#include "ops/store/store.h"

#ifdef MLXRS_CUDA
#include "cuda/attention.h"
#include "cuda/flat.h"
#endif

namespace mlxrs::ops {

Arrays FlatInputs::all() const {
  Arrays all{q, k};
  if (v) {
    all.push_back(*v);
  }
  rows.append(all);
  for (const auto& more : {mask, slopes, sinks}) {
    if (more) {
      all.push_back(*more);
    }
  }
  return all;
}

int value_size(const FlatInputs& of, const FlatOptions& options) {
  return of.v ? unpacked_size(*of.v, options.packing, of.q.dtype()) : options.value_dim;
}

void check_flat(const FlatInputs& of, const FlatOptions& options) {
  auto require = [](bool holds, const char* text) {
    if (!holds) {
      throw std::invalid_argument(std::string("attention of a flat step: ") + text);
    }
  };
  const auto &q = of.q, &k = of.k;
  check_rows(of.rows, "attention of a flat step");
  bool is_paged = of.rows.has_pages();
  require(is_float(q.dtype()) && q.ndim() == 4 && q.shape(0) == 1, "queries must be F32, F16 or BF16 [1, H, T, D]");
  require(is_paged || options.packing.bits == 0, "keys that are not in pages cannot be packed");
  auto kept_as = options.packing.bits > 0 ? mx::uint32 : q.dtype();
  for (const auto* a : {&k, of.v ? &*of.v : &k}) {
    require(a->ndim() == 4 && a->dtype() == kept_as, "keys and values need the queries' dtype, or U32 if they are packed");
    if (is_paged) {
      check_pool(*a, "attention of a flat step");
      require(a->shape(0) == k.shape(0), "keys and values need the same number of pages");
    } else {
      require(a->shape(0) == 1 && a->shape(2) == q.shape(2), "there must be a key and a value for each query");
    }
    require(a->shape(1) == k.shape(1) && a->shape(2) == k.shape(2), "keys and values need the same heads and positions");
  }
  require(k.shape(1) > 0 && q.shape(1) > 0 && q.shape(1) % k.shape(1) == 0, "the query heads must be a multiple of the KV heads");
  int dim = q.shape(3);
  require(dim > 0 && unpacked_size(k, options.packing, q.dtype()) == dim, "keys need the queries' head size");
  require(of.v.has_value() == (options.value_dim == 0), "there are values, or the size of values in latents");
  require(of.v || (options.packing.bits == 0 && options.value_dim <= dim), "latents are not packed, and no shorter than values");
  require(value_size(of, options) > 0, "values must not be empty");
  require(
      options.window >= 0 && options.chunk >= 0 && options.ahead >= 0 && options.most >= 0,
      "a window, a chunk or a number of tokens must not be negative");
  require(
      options.ahead == 0 || (!is_paged && options.chunk == 0 && !of.slopes),
      "queries see positions after their own only without pages, chunks and slopes");
  if (of.mask) {
    const auto& mask = *of.mask;
    bool fits = mask.ndim() == 3 && (mask.shape(0) == 1 || mask.shape(0) == q.shape(1)) &&
        (mask.shape(1) == 1 || mask.shape(1) == q.shape(2)) && mask.shape(2) > 0;
    require(fits, "a mask must be [1 or H, 1 or T, S]");
    bool is_short = !is_paged || mask.shape(2) <= int64_t(of.rows.tables->shape(1)) * k.shape(2);
    require(is_short, "a mask must not have more columns than the tables have positions");
  }
  auto is_of_heads = [&](const std::optional<mx::array>& a) {
    return !a || (a->ndim() == 1 && a->shape(0) == q.shape(1) && a->dtype() == mx::float32);
  };
  require(is_of_heads(of.slopes), "slopes must be F32, one for each query head");
  require(is_of_heads(of.sinks), "sinks must be one number for each query head");
}

namespace {

// The inputs are those of FlatInputs::all.
class FlatAttention : public Node {
 public:
  // Which of the inputs there are.
  struct Kinds {
    bool values, pages, mask, slopes, sinks;

    bool operator==(const Kinds&) const = default;
  };

  FlatAttention(mx::Stream s, const FlatOptions& options, const Kinds& kinds) : Node(s), options_(options), kinds_(kinds) {}

  bool allocate(const Arrays&, Arrays& out) override {
    return allocate_result(out[0]);
  }
  void encode(const Arrays& in, Arrays& out) override {
    auto of = given(in);
    const auto &q = of.q, &k = of.k, &v = of.v ? *of.v : of.k;
    auto& y = out[0];
    int64_t value_dim = y.shape(3);
    const auto* kernel = &attention_kernels(type_of(q.dtype()), q.shape(3), value_dim, options_.packing.bits > 0);
    AttentionOptions options{
        options_.scale, options_.cap, Mask::positions, Layout::straight, options_.window, options_.packing};
    Plan p{options, HeadRows(q), HeadRows(k), HeadRows(v), 1, q.shape(1), k.shape(1), q.shape(2), k.shape(2), q.shape(3), value_dim,
           q.itemsize(), kernel};
    p.has_pages = kinds_.pages;
    p.seen_chunk = options_.chunk;
    p.ahead = options_.ahead;
    std::span<const mx::array> rows(in.begin() + first_row(), kinds_.pages ? 3 : 1);
    p.step.emplace(rows, p.tokens, kinds_.pages ? k.shape(0) : 0, kinds_.pages ? k.shape(2) : 0);
    if (of.mask) {
      const auto& mask = *of.mask;
      p.columns = mask.shape(2);
      p.mask_strides = {
          0, mask.shape(0) > 1 ? mask.strides(0) : 0, mask.shape(1) > 1 ? mask.strides(1) : 0, mask.strides(2)};
      p.seen = mask.dtype() == mx::bool_ ? mask.data<bool>() : nullptr;
      p.added = mask.dtype() == mx::bool_ ? nullptr : mask.data<float>();
    }
    if (of.slopes) {
      p.slopes = of.slopes->data<float>();
      p.slope_step = of.slopes->strides(0);
    }
    if (of.sinks) {
      p.sinks = of.sinks->data<float>();
      p.sink_step = of.sinks->strides(0);
    }
    p.y = y.data<char>();
    mx::cpu::get_command_encoder(stream()).dispatch([p = std::move(p)] { run(p); });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    int64_t heads = y.shape(1), tokens = y.shape(2), d = y.shape(3);
    cuda::allocate_as(
        y, {heads * tokens * d, d, heads * d, 1},
        {true, heads == 1 || tokens == 1, y.size() <= 1 || (heads * d == 1 && tokens == 1)}, stream());
    flat_attention_on_cuda(given(in), y, options_, stream());
  }
#endif

  mx::array plain(const Arrays& in) override {
    return flat_attention_plainly(given(in), options_, stream());
  }

  // Without pages the gradients are a node, as those of the dense form.
  Arrays derive(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override {
    bool usual = kinds_ == Kinds{true, false, kinds_.mask, false, false} && options_.cap == 0;
    if (!usual || !has_derivative(primals, cotangents, argnums, 3)) {
      return Node::derive(primals, cotangents, argnums, outputs);
    }
    auto s = stream();
    auto options = options_;
    auto kinds = kinds_;
    Arrays inputs = primals;
    // Whether queries see no position after their own.
    bool is_causal = options.ahead == 0, sees_end = is_causal || options.ahead >= primals[0].shape(2);
    if (options.window > 0 || options.chunk > 0 || !sees_end) {
      // What a window or a chunk hides becomes a mask.
      int tokens = primals[0].shape(2), columns = kinds.mask ? primals[4].shape(2) : tokens;
      auto at = mx::reshape(positions_of_tokens(FlatRows::of(std::span(primals).subspan(3, 1)), tokens, s), {1, tokens, 1}, s);
      auto column = mx::reshape(mx::arange(0, columns, 1, mx::int32, s), {1, 1, columns}, s);
      auto mask = mx::greater_equal(column, first_seen(at, options, s), s);
      if (!sees_end) {
        mask = mx::logical_and(mask, is_before_end(column, at, options, s), s);
      }
      if (kinds.mask && primals[4].dtype() == mx::bool_) {
        mask = mx::logical_and(mask, primals[4], s);
      } else if (kinds.mask) {
        mask = mx::where(mask, primals[4], mx::array(-std::numeric_limits<float>::infinity()), s);
      }
      inputs.resize(4, mask);
      inputs.push_back(mask);
      options.window = options.chunk = 0;
      if (!is_causal) {
        options.ahead = std::numeric_limits<int>::max();
      }
      kinds.mask = true;
    }
    auto same = std::make_shared<FlatAttention>(s, options, kinds);
    return attention_vjp(std::move(same), options.scale, is_causal, true, inputs, cotangents[0], argnums);
  }

  const char* name() const override {
    return "Attention";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const FlatAttention&>(other);
    return options_ == that.options_ && kinds_ == that.kinds_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape[3] = value_size(given(in), options_);
    return {shape};
  }

 private:
  size_t first_row() const {
    return kinds_.values ? 3 : 2;
  }
  FlatInputs given(const Arrays& in) const {
    size_t at = first_row(), rows = kinds_.pages ? 3 : 1;
    FlatInputs of{in[0], in[1], kinds_.values ? std::make_optional(in[2]) : std::nullopt,
                  FlatRows::of(std::span(in).subspan(at, rows)), std::nullopt, std::nullopt, std::nullopt};
    at += rows;
    if (kinds_.mask) {
      of.mask = in[at++];
    }
    if (kinds_.slopes) {
      of.slopes = in[at++];
    }
    if (kinds_.sinks) {
      of.sinks = in[at++];
    }
    return of;
  }

  FlatOptions options_;
  Kinds kinds_;
};

} // namespace

std::optional<mx::array> flat_attention(const FlatInputs& of, const FlatOptions& options, mx::Stream s) {
  if (s.device == mx::Device::gpu) {
#ifdef MLXRS_CUDA
    if (!takes(s, of.q) || !flat_fits_cuda(of, options)) {
      return std::nullopt;
    }
#else
    return std::nullopt;
#endif
  }
  FlatAttention::Kinds kinds{of.v.has_value(), of.rows.has_pages(), of.mask.has_value(), of.slopes.has_value(), of.sinks.has_value()};
  auto shape = of.q.shape();
  shape[3] = value_size(of, options);
  return mx::array(std::move(shape), of.q.dtype(), std::make_shared<FlatAttention>(s, options, kinds), of.all());
}

} // namespace mlxrs::ops
