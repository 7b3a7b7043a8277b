// The node of attention. On CPUs a task has some tokens of one row and the query heads of one KV head. Each task
// processes its keys in chunks (see `chunk` in ops/cpu/kernels.h) and merges the chunks' results in order.
#include "plan.h"

#include "ops/store/store.h"

#ifdef MLXRS_CUDA
#include "cuda/attention.h"
#endif

namespace mlxrs::ops {
namespace {

// The result of no chunk.
Partial empty(const Task& task, float* at) {
  auto p = task.partial(at);
  std::fill_n(p.largest, task.a.queries, std::numeric_limits<float>::lowest());
  std::fill_n(p.sum, task.a.queries, 0.0f);
  std::fill_n(p.values, task.a.queries * task.a.value_dim, 0.0f);
  return p;
}

// Adds the attention sinks and writes the outputs of a task.
void finish(const Task& task, const AttentionKernels& kernel, const Partial& all) {
  const auto& a = task.a;
  for (long r = 0; r < a.queries; r++) {
    float sum = all.sum[r];
    const float* values = all.values + r * a.value_dim;
    long head = r % a.group;
    if (task.sinks != nullptr && sum != 0) {
      // The sink is a score without a value. It adds to the softmax's sum, and can be the largest score.
      float sink = task.sinks[head * task.sink_step], best = std::max(sink, all.largest[r]);
      float old = std::exp(all.largest[r] - best);
      sum = sum * old + std::exp(sink - best);
      sum = old > 0 ? sum / old : std::numeric_limits<float>::infinity();
    }
    kernel.finish(values, sum, a.value_dim, task.y + r / a.group * task.y_token + head * task.y_head);
  }
}

// Runs a task on one thread, one chunk after the other.
void run(Task& task, const AttentionKernels& kernel) {
  const auto& a = task.attention();
  long loaded = kernel.loaded_size(a), work = kernel.work_size(a), size = task.partial_size();
  float* memory = workspace(loaded + work + 2 * size);
  float* space = memory + loaded;
  kernel.load(a, memory);
  auto all = task.partial(space + work), more = task.partial(space + work + size);
  if (task.begin == task.end) {
    empty(task, space + work);
  } else {
    kernel.chunk(a, memory, task.begin, space, all);
  }
  for (long c = task.begin + 1; c < task.end; c++) {
    kernel.chunk(a, memory, c, space, more);
    kernels().merge(a.queries, a.value_dim, all, more);
  }
  finish(task, kernel, all);
}

// Runs few tasks with many keys: all threads share the chunks, and the chunks' results are merged in the same order as
// in `run`.
void run_split(std::vector<Task>& tasks, const AttentionKernels& kernel) {
  struct Piece {
    Task* task;
    long chunk, at;
  };
  std::vector<Piece> pieces;
  long total = 0;
  for (auto& task : tasks) {
    for (long c = task.begin; c < task.end; c++) {
      pieces.push_back({&task, c, total});
      total += task.partial_size();
    }
  }
  std::vector<float> partials(total);
  Threads::shared().each(static_cast<uint32_t>(pieces.size()), [&](uint32_t i) {
    const auto& piece = pieces[i];
    const auto& a = piece.task->a;
    long loaded = kernel.loaded_size(a);
    float* memory = workspace(loaded + kernel.work_size(a));
    kernel.load(a, memory);
    kernel.chunk(a, memory, piece.chunk, memory + loaded, piece.task->partial(partials.data() + piece.at));
  });
  size_t next = 0;
  for (auto& task : tasks) {
    auto all = empty(task, workspace(task.partial_size()));
    for (long c = task.begin; c < task.end; c++, next++) {
      auto more = task.partial(partials.data() + pieces[next].at);
      kernels().merge(task.a.queries, task.a.value_dim, all, more);
    }
    finish(task, kernel, all);
  }
}

void run(const Plan& p) {
  for (const auto* dense : {&p.q, &p.k, &p.v}) {
    dense->copy();
  }
  auto& threads = Threads::shared();
  double work = double(p.rows) * p.heads * p.tokens * p.slots * (p.dim + p.value_dim);
  // The tokens of a task. It is halved until every thread has enough tasks.
  int at_once = std::max<int>(1, 128 / p.group());
  auto pieces = [&] { return (p.tokens + at_once - 1) / at_once * p.rows * p.kv_heads; };
  while (threads.count() > 1 && at_once > 1 && at_once * p.group() > 32 && pieces() < 4 * threads.count()) {
    at_once = (at_once + 1) / 2;
  }
  int parts = (p.tokens + at_once - 1) / at_once;
  // With fewer tasks than threads and one chunk of keys, the query heads of a KV head are split over several tasks.
  long heads = p.group();
  while (parts * p.rows * (p.heads / heads) < threads.count() && p.slots <= chunk && heads % 2 == 0) {
    heads /= 2;
  }
  uint32_t groups = static_cast<uint32_t>(p.heads / heads), across = p.rows * groups, n = parts * across;
  auto task = [&](uint32_t i) {
    int part = i % parts, group = i / parts % groups, row = i / parts / groups;
    int token = part * at_once;
    return Task(p, row, group * heads, heads, token, std::min(at_once, p.tokens - token));
  };
  if (work < 200e3 || threads.count() < 2) {
    for (uint32_t i = 0; i < n; i++) {
      auto one = task(i);
      run(one, *p.kernel);
    }
  } else if (n < 2u * threads.count() && p.slots > chunk) {
    std::vector<Task> tasks;
    for (uint32_t i = 0; i < n; i++) {
      tasks.push_back(task(i));
    }
    for (auto& task : tasks) {
      task.attention();
    }
    run_split(tasks, *p.kernel);
  } else {
    // The last tokens of a prompt see the most keys, so their tasks start first. Threads take tasks from the highest
    // index down.
    threads.each_several(n, 32, [&](uint32_t i) {
      auto one = task(i / across + i % across * parts);
      run(one, *p.kernel);
    });
  }
}

class AttentionNode : public Node {
 public:
  AttentionNode(mx::Stream s, const AttentionOptions& options, bool sinks)
      : Node(s), options_(options), sinks_(sinks) {}

  bool allocate(const Arrays&, Arrays& out) override {
    auto& y = out[0];
    // The memory order is [B, L, H, Dv], so that merging the heads needs no copy.
    int64_t heads = y.shape(1), tokens = y.shape(2), d = y.shape(3);
    y.set_data(
        mx::allocator::malloc(y.nbytes()), y.size(), {heads * tokens * d, d, heads * d, 1},
        {true, heads == 1 || tokens == 1, y.size() <= 1 || (heads * d == 1 && tokens == 1)});
    return y.size() > 0;
  }
#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    int64_t heads = y.shape(1), tokens = y.shape(2), d = y.shape(3);
    cuda::allocate_as(
        y, {heads * tokens * d, d, heads * d, 1},
        {true, heads == 1 || tokens == 1, y.size() <= 1 || (heads * d == 1 && tokens == 1)}, stream());
    auto on_cuda = is_stored(in[0].shape(3), y.shape(3), options_) ? stored_on_cuda : attention_on_cuda;
    on_cuda(in, y, options_, sinks_, stream());
  }
#endif
  void encode(const Arrays& in, Arrays& out) override {
    const auto &q = in[0], &k = in[1], &v = in[2];
    auto& y = out[0];
    int64_t d = y.shape(3);
    const auto* kernel = &attention_kernels(type_of(q.dtype()), q.shape(3), d, options_.packing.bits > 0);
    Plan p{options_, HeadRows(q), HeadRows(k), HeadRows(v), q.shape(0), q.shape(1), k.shape(1), q.shape(2), k.shape(2),
           q.shape(3), d, q.itemsize(), kernel};
    if (options_.mask == Mask::array) {
      std::copy_n(in[3].strides().begin(), 4, p.mask_strides.begin());
      p.seen = in[3].dtype() == mx::bool_ ? in[3].data<bool>() : nullptr;
      p.added = in[3].dtype() == mx::bool_ ? nullptr : in[3].data<float>();
    } else if (options_.mask == Mask::positions) {
      p.offsets = in[3].data<int32_t>();
      p.offset_step = in[3].size() > 1 ? in[3].strides(0) : 0;
    }
    if (sinks_) {
      p.sinks = in.back().data<float>();
      p.sink_step = in.back().strides(0);
    }
    p.y = y.data<char>();
    mx::cpu::get_command_encoder(stream()).dispatch([p = std::move(p)] { run(p); });
  }

  mx::array plain(const Arrays& in) override {
    bool has_array = options_.mask == Mask::array || options_.mask == Mask::positions;
    AttentionInputs of{
        in[0], in[1], in[2], has_array ? std::make_optional(in[3]) : std::nullopt,
        sinks_ ? std::make_optional(in.back()) : std::nullopt};
    return attention_plainly(of, options_, stream());
  }

  Arrays derive(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs) override {
    const auto &q = primals[0], &k = primals[1];
    bool usual = options_.cap == 0 && options_.packing.bits == 0 && !sinks_;
    if (!usual || !has_derivative(primals, cotangents, argnums, 3)) {
      return Node::derive(primals, cotangents, argnums, outputs);
    }
    auto options = options_;
    Arrays inputs = primals;
    if (options.mask == Mask::positions) {
      auto mask = dense_mask(q.shape(2), k.shape(2), options.layout, options.window, primals[3], stream());
      inputs[3] = mx::broadcast_to(mask, {q.shape(0), q.shape(1), q.shape(2), k.shape(2)}, stream());
      options.mask = Mask::array;
    }
    auto same = std::make_shared<AttentionNode>(stream(), options, false);
    return attention_vjp(std::move(same), options, inputs, cotangents[0], argnums);
  }

  const char* name() const override {
    return "Attention";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const AttentionNode&>(other);
    return options_ == that.options_ && sinks_ == that.sinks_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape[3] = unpacked_size(in[2], options_.packing, in[0].dtype());
    return {shape};
  }

 private:
  AttentionOptions options_;
  bool sinks_;
};

} // namespace

std::optional<mx::array> attention(const AttentionInputs& of, const AttentionOptions& options, mx::Stream s) {
  const mx::array &q = of.q, &k = of.k, &v = of.v;
  const auto &mask_or_offsets = of.mask_or_offsets, &sinks = of.sinks;
  const auto& packing = options.packing;
  auto kept_as = packing.bits > 0 ? mx::uint32 : q.dtype();
  auto is_usual = [&](const mx::array& a, mx::Dtype dtype) {
    return a.ndim() == 4 && a.dtype() == dtype && a.shape(0) == q.shape(0) && a.shape(1) > 0 && a.shape(3) > 0;
  };
  bool usual = is_float(q.dtype()) && is_usual(q, q.dtype()) && is_usual(k, kept_as) && is_usual(v, kept_as) &&
      q.shape(3) == unpacked_size(k, packing, q.dtype()) && unpacked_size(v, packing, q.dtype()) > 0 && k.shape(1) == v.shape(1) && k.shape(2) == v.shape(2) && k.shape(2) > 0 && q.shape(1) % k.shape(1) == 0;
  auto mask = options.mask;
  usual = usual && (mask != Mask::causal || k.shape(2) >= q.shape(2));
  if (usual && mask == Mask::array) {
    usual = mask_or_offsets->ndim() <= 4 && (mask_or_offsets->dtype() == mx::bool_ || is_float(mask_or_offsets->dtype()));
  } else if (usual && mask == Mask::positions) {
    usual = mask_or_offsets->dtype() == mx::int32 && mask_or_offsets->ndim() <= 1 &&
        (mask_or_offsets->size() == 1 || mask_or_offsets->size() == static_cast<size_t>(q.shape(0))) && k.shape(2) >= q.shape(2);
  }
  usual = usual && (!sinks || (sinks->ndim() == 1 && sinks->shape(0) == q.shape(1)));
#ifdef MLXRS_CUDA
  if (usual && s.device == mx::Device::gpu) {
    usual = takes(s, q) && fits_cuda(q, k, unpacked_size(v, packing, q.dtype()), options);
  }
#endif
  if (!usual) {
    return std::nullopt;
  }
  Arrays inputs;
  inputs.reserve(5);
  inputs.insert(inputs.end(), {q, k, v});
  if (mask == Mask::array) {
    auto dense = mask_or_offsets->dtype() == mx::bool_ ? *mask_or_offsets : mx::astype(*mask_or_offsets, mx::float32, s);
    inputs.push_back(mx::broadcast_to(dense, {q.shape(0), q.shape(1), q.shape(2), k.shape(2)}, s));
  } else if (mask == Mask::positions) {
    inputs.push_back(*mask_or_offsets);
  }
  if (sinks) {
    inputs.push_back(mx::astype(*sinks, mx::float32, s));
  }
  mx::Shape shape{q.shape(0), q.shape(1), q.shape(2), unpacked_size(v, packing, q.dtype())};
  auto node = std::make_shared<AttentionNode>(s, options, sinks.has_value());
  return mx::array(std::move(shape), q.dtype(), std::move(node), std::move(inputs));
}

} // namespace mlxrs::ops
