#include "tasks.h"

#include <cmath>
#include <numeric>

namespace mlxrs::ops {
namespace {

float softplus(float x) {
  return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x)));
}

} // namespace

// The decays and betas of all tokens, and the inputs that tasks read.
struct DeltaTasks::Factors {
  std::vector<char> copies[5];
  const char *x, *b;
  // Decays: `of_head` for each head, `of_token` for each token.
  long of_head, of_token;
  std::vector<float> decay, beta, zeros;
};

struct DeltaTasks::Task {
  long row, head;
  // The rows of the state.
  long first, own;
  // In tokens of a head.
  double cost;
};

DeltaTasks::DeltaTasks(
    const DeltaSettings& settings, const Arrays& in, long heads, long value_dim, long dim, mx::array& y)
    : settings_(settings), size_(static_cast<long>(y.itemsize())), width_(in[0].shape(2)), heads_(heads), value_dim_(value_dim),
      dim_(dim), x_(in[0]), a_(in[1]), b_(in[2]), rate_(in[3]), bias_(in[4]), y_(y.data<char>()) {
  auto type = static_cast<int>(type_of(y.dtype()));
  kernel_ = kernels().recurrent[type];
  to_float_ = kernels().choose[type].at;
}

DeltaTasks::Factors DeltaTasks::factors(long tokens) const {
  Factors of;
  of.x = x_.get(of.copies[0]);
  const char* a = a_.get(of.copies[1]);
  of.b = b_.get(of.copies[2]);
  auto rates = reinterpret_cast<const float*>(rate_.get(of.copies[3]));
  auto biases = reinterpret_cast<const float*>(bias_.get(of.copies[4]));
  bool scans = settings_.rule == Rule::scan;
  of.of_head = settings_.rule == Rule::channels ? dim_ : 1;
  of.of_token = heads_ * of.of_head;
  of.decay.resize(tokens * of.of_token);
  of.beta.resize(tokens * heads_);
  share(static_cast<uint32_t>(tokens), 40.0 * tokens * of.of_token, [&](uint32_t token) {
    for (long i = 0; i < of.of_token; i++) {
      float input = to_float_(a, token * of.of_token + i) + biases[i], rate = rates[i / of.of_head];
      float& decay = of.decay[token * of.of_token + i];
      if (settings_.bound < 0) {
        decay = std::exp(settings_.bound / (1 + std::exp(-rate * input)));
        continue;
      }
      float step = softplus(input);
      if (scans) {
        step = std::clamp(step, settings_.least, settings_.most);
        of.beta[token * heads_ + i] = step;
      }
      decay = std::exp(-rate * step);
    }
    for (long i = token * heads_; !scans && i < (token + 1) * heads_; i++) {
      of.beta[i] = settings_.most / (1 + std::exp(-to_float_(of.b, i)));
    }
  });
  return of;
}

// The tasks of long rows come first, so that a thread does not begin one when the others are done. Each task normalises
// queries and keys itself, so tasks are whole heads; a head is divided into four if it is more than a quarter of a
// thread's part.
std::vector<DeltaTasks::Task> DeltaTasks::tasks(const DeltaRows& rows) const {
  std::vector<long> tokens(rows.ends.size()), order(rows.ends.size());
  for (size_t row = 0; row < tokens.size(); row++) {
    for (const auto& segment : rows.of(row)) {
      tokens[row] += segment.tokens;
    }
  }
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](long i, long j) { return tokens[i] > tokens[j]; });
  auto cost = [&](long row) { return static_cast<double>(std::max(tokens[row], 1L)); };
  double all = 0;
  for (long row : order) {
    all += cost(row) * heads_;
  }
  std::vector<Task> tasks;
  for (long row : order) {
    long pieces = 4 * Threads::shared().count() * cost(row) <= all ? 1 : 4;
    long piece = ((value_dim_ + pieces - 1) / pieces + 3) / 4 * 4;
    for (long head = 0; !rows.of(row).empty() && head < heads_; head++) {
      for (long first = 0; first < value_dim_; first += piece) {
        long own = std::min(piece, value_dim_ - first);
        tasks.push_back({row, head, first, own, cost(row) * own / value_dim_});
      }
    }
  }
  return tasks;
}

void DeltaTasks::update(const Factors& of, std::span<const DeltaSegment> row, const Task& task) const {
  bool scans = settings_.rule == Rule::scan;
  long key_heads = settings_.key_heads, head = task.head, key_head = head / (heads_ / key_heads);
  // The columns of x at which queries, keys and values begin.
  long keys = key_heads * dim_, q = scans ? heads_ * value_dim_ + keys : 0, k = scans ? heads_ * value_dim_ : keys;
  long v = scans ? 0 : 2 * keys, y_step = heads_ * value_dim_, of_state = (head * value_dim_ + task.first) * dim_;
  for (const auto& segment : row) {
    auto at = [&](long column) { return of.x + (segment.first * width_ + column) * size_; };
    Delta d{settings_.rule,
            dim_,
            task.own,
            segment.tokens,
            at(q + key_head * dim_),
            at(k + key_head * dim_),
            at(v + head * value_dim_ + task.first),
            width_,
            of.decay.data() + segment.first * of.of_token + head * of.of_head,
            of.beta.data() + segment.first * heads_ + head,
            of.of_token,
            heads_,
            scans ? reinterpret_cast<const float*>(of.b)[head] : 0.0f,
            segment.before != nullptr ? segment.before + of_state : of.zeros.data(),
            nullptr,
            y_ + (segment.first * y_step + head * value_dim_ + task.first) * size_,
            y_step};
    long own_size = kernel_.delta_size(d);
    float* work = workspace(own_size + task.own * dim_);
    d.after = segment.after != nullptr ? segment.after + of_state : work + own_size;
    kernel_.delta(d, work);
  }
}

void DeltaTasks::run(long tokens, const DeltaRows& rows) const {
  auto of = factors(tokens);
  const auto& segments = rows.segments;
  if (std::any_of(segments.begin(), segments.end(), [](const DeltaSegment& s) { return s.before == nullptr; })) {
    of.zeros.resize(value_dim_ * dim_);
  }
  auto all = tasks(rows);
  double cost = 0;
  for (const auto& task : all) {
    cost += task.cost;
  }
  auto& threads = Threads::shared();
  if (6.0 * cost * value_dim_ * dim_ < 20e3 || threads.count() < 2) {
    for (const auto& task : all) {
      update(of, rows.of(task.row), task);
    }
    return;
  }
  // Threads take several tasks at once, about an eighth of a thread's part.
  double part = cost / (8.0 * threads.count()), sum = 0;
  std::vector<size_t> ends;
  for (size_t i = 0; i < all.size(); i++) {
    sum += all[i].cost;
    if (sum >= part || i + 1 == all.size()) {
      ends.push_back(i + 1);
      sum = 0;
    }
  }
  threads.each(static_cast<uint32_t>(ends.size()), [&](uint32_t i) {
    for (size_t task = i > 0 ? ends[i - 1] : 0; task < ends[i]; task++) {
      update(of, rows.of(all[task].row), all[task]);
    }
  });
}

void DeltaTasks::clear(long first, long end) const {
  long bytes = heads_ * value_dim_ * size_;
  std::memset(y_ + first * bytes, 0, std::max(end - first, 0L) * bytes);
}

} // namespace mlxrs::ops
