// Runs a CPU attention. A task has some tokens of one row and the query heads of one KV head. Each task processes its keys
// in chunks (see `chunk` in ops/cpu/kernels.h) and merges the chunks' results in order.
#include "plan.h"

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

// The tokens and heads of a task, its chunks, and its work: queries times positions.
struct Part {
  int row, token, tokens;
  long head, heads, begin, end;
  double work;
};

// Divides the rows into parts. Results do not depend on it.
std::vector<Part> parts_of(const Plan& p, int threads) {
  // The tokens of a part. It is halved until every thread has enough parts.
  int at_once = std::max<int>(1, 128 / p.group());
  auto count = [&] {
    long n = 0;
    for (int row = 0; row < p.row_count(); row++) {
      n += (p.tokens_of(row) + at_once - 1) / at_once;
    }
    return n;
  };
  while (threads > 1 && at_once > 1 && at_once * p.group() > 32 && count() * p.kv_heads < 4l * threads) {
    at_once = (at_once + 1) / 2;
  }
  long longest = 0;
  for (int row = 0; row < p.row_count(); row++) {
    if (int tokens = p.tokens_of(row); tokens > 0) {
      longest = std::max<long>(longest, p.span(row, tokens - 1).second - p.span(row, 0).first);
    }
  }
  // With fewer parts than threads and one chunk of keys, the query heads of a KV head are split over several parts.
  long heads = p.group();
  while (count() * (p.heads / heads) < threads && longest <= chunk && heads % 2 == 0) {
    heads /= 2;
  }
  std::vector<Part> parts;
  parts.reserve(static_cast<size_t>(count() * (p.heads / heads)));
  for (int row = 0; row < p.row_count(); row++) {
    int tokens = p.tokens_of(row);
    for (int token = 0; token < tokens; token += at_once) {
      int n = std::min(at_once, tokens - token);
      auto first = p.span(row, token), last = p.span(row, token + n - 1);
      int from = std::min(first.first, last.first), to = std::max(first.second, last.second);
      long begin = from / chunk, end = std::max<long>(begin, (to + chunk - 1) / chunk);
      for (long head = 0; head < p.heads; head += heads) {
        parts.push_back({row, token, n, head, heads, begin, end, double(n) * heads * (to - from)});
      }
    }
  }
  return parts;
}

// Tasks that take longer than the others are split: threads share their chunks, and the chunks' results are merged in the
// same order as in `run`.
class Split {
 public:
  // A chunk of a task, and the place of its result.
  struct Piece {
    size_t task;
    long chunk, at;
  };

  explicit Split(const Plan& p, const std::vector<Part>& parts) {
    for (const auto& part : parts) {
      tasks_.emplace_back(p, part.row, part.head, part.heads, part.token, part.tokens);
    }
    long total = 0;
    for (size_t i = 0; i < tasks_.size(); i++) {
      tasks_[i].attention();
      for (long c = tasks_[i].begin; c < tasks_[i].end; c++) {
        pieces_.push_back({i, c, total});
        total += tasks_[i].partial_size();
      }
    }
    partials_.resize(total);
  }

  uint32_t count() const {
    return static_cast<uint32_t>(pieces_.size());
  }
  void run(uint32_t i, const AttentionKernels& kernel) {
    const auto& piece = pieces_[i];
    const auto& task = tasks_[piece.task];
    long loaded = kernel.loaded_size(task.a);
    float* memory = workspace(loaded + kernel.work_size(task.a));
    kernel.load(task.a, memory);
    kernel.chunk(task.a, memory, piece.chunk, memory + loaded, task.partial(partials_.data() + piece.at));
  }
  void merge(const AttentionKernels& kernel) {
    auto piece = pieces_.begin();
    for (auto& task : tasks_) {
      auto all = empty(task, workspace(task.partial_size()));
      for (long c = task.begin; c < task.end; c++, piece++) {
        kernels().merge(task.a.queries, task.a.value_dim, all, task.partial(partials_.data() + piece->at));
      }
      finish(task, kernel, all);
    }
  }

 private:
  std::vector<Task> tasks_;
  std::vector<Piece> pieces_;
  std::vector<float> partials_;
};

// Throws if the numbers of a flat step are wrong, and zeroes the results of tokens of no row.
void begin_step(const Plan& p) {
  if (!p.step) {
    return;
  }
  p.step->check(p.options.window, p.seen_chunk, p.columns);
  size_t token = p.heads * p.value_dim * p.size;
  int own = p.step->begin(p.step->rows());
  std::memset(p.y + own * token, 0, (p.tokens - own) * token);
}

} // namespace

bool allocate_result(mx::array& y) {
  int64_t heads = y.shape(1), tokens = y.shape(2), d = y.shape(3);
  y.set_data(
      mx::allocator::malloc(y.nbytes()), y.size(), {heads * tokens * d, d, heads * d, 1},
      {true, heads == 1 || tokens == 1, y.size() <= 1 || (heads * d == 1 && tokens == 1)});
  return y.size() > 0;
}

void run(const Plan& p) {
  for (const auto* dense : {&p.q, &p.k, &p.v}) {
    dense->copy();
  }
  begin_step(p);
  auto& threads = Threads::shared();
  auto parts = parts_of(p, threads.count());
  double work = 0;
  for (const auto& part : parts) {
    work += part.work;
  }
  auto whole = [&](const Part& part) {
    Task task(p, part.row, part.head, part.heads, part.token, part.tokens);
    run(task, *p.kernel);
  };
  if (work * (p.dim + p.value_dim) < 200e3 || threads.count() < 2) {
    for (const auto& part : parts) {
      whole(part);
    }
    return;
  }
  // Parts with more than half of a thread's share of the work are split.
  auto is_whole = [&](const Part& part) {
    return part.end - part.begin < 2 || part.work * 2 * threads.count() <= work;
  };
  auto end = std::stable_partition(parts.begin(), parts.end(), is_whole);
  Split split(p, {end, parts.end()});
  parts.erase(end, parts.end());
  // Threads take indices from the highest down: first the chunks of long parts, then parts with much work.
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.work < b.work; });
  uint32_t wholes = static_cast<uint32_t>(parts.size());
  auto one = [&](uint32_t i) {
    if (i < wholes) {
      whole(parts[i]);
    } else {
      split.run(i - wholes, *p.kernel);
    }
  };
  if (split.count() > 0) {
    threads.each(wholes + split.count(), one);
  } else {
    threads.each_several(wholes, 32, one);
  }
  split.merge(*p.kernel);
}

} // namespace mlxrs::ops
