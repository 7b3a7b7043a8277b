// Choosing among a vocabulary: the largest of a row, its n largest, and where the likeliest have a probability together.
// A row is cut into pieces that are the same whoever takes them.
#include <numeric>

#include "kernels.h"
#include "node.h"

namespace mlxrs::fused {
namespace {

constexpr long piece = 16384;

// The rows of an array and their pieces.
struct Pieces {
  Vectors rows;
  long n, of_row, count;
  size_t size;

  explicit Pieces(const mx::array& x)
      : rows(x), n(x.shape(-1)), of_row((n + piece - 1) / piece), count(static_cast<long>(x.size()) / n * of_row),
        size(x.itemsize()) {}

  long row(uint32_t i) const {
    return i / of_row;
  }
  long first(uint32_t i) const {
    return i % of_row * piece;
  }
  long length(uint32_t i) const {
    return std::min(piece, n - first(i));
  }
  const char* at(uint32_t i) const {
    return rows(row(i), workspace(n)) + first(i) * size;
  }
};

class ArgMax : public Node {
 public:
  using Node::Node;

  void encode(const Arrays& in, Arrays& out) override {
    out[0].set_data(mx::allocator::malloc(out[0].nbytes()));
    if (out[0].size() == 0) {
      return;
    }
    mx::cpu::get_command_encoder(stream()).dispatch(
        [p = Pieces(in[0]), argmax = row_kernels(in[0].dtype()).argmax, to = out[0].data<uint32_t>()] {
          std::vector<std::pair<float, long>> best(p.count);
          share(p.count, double(p.count) * std::min(p.n, piece), [&](uint32_t i) {
            best[i].second = p.first(i) + argmax(p.at(i), p.length(i), &best[i].first);
          });
          for (long row = 0; row < p.count / p.of_row; row++) {
            auto first = best.begin() + row * p.of_row;
            // The first of equal ones.
            auto larger = [](const auto& a, const auto& b) { return a.first < b.first; };
            to[row] = static_cast<uint32_t>(std::max_element(first, first + p.of_row, larger)->second);
          }
        });
  }

  mx::array plain(const Arrays& in) override {
    return mx::argmax(in[0], -1, false, stream());
  }

  const char* name() const override {
    return "ArgMax";
  }
  bool is_equivalent(const mx::Primitive&) const override {
    return true;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape.pop_back();
    return {shape};
  }
};

struct Entry {
  float value;
  uint32_t id;
  // Best first: the larger, and of equal ones the one of the lower id. What is no number is as minus infinity.
  bool operator<(const Entry& that) const {
    return value != that.value ? value > that.value : id < that.id;
  }
};

class Top : public Node {
 public:
  Top(mx::Stream s, int n) : Node(s), n_(n) {}

  void encode(const Arrays& in, Arrays& out) override {
    for (auto& y : out) {
      y.set_data(mx::allocator::malloc(y.nbytes()));
    }
    if (out[0].size() == 0) {
      return;
    }
    mx::cpu::get_command_encoder(stream()).dispatch(
        [p = Pieces(in[0]), n = static_cast<size_t>(n_), ids = out[0].data<uint32_t>(),
         values = out[1].data<float>()] {
          std::vector<std::vector<Entry>> found(p.count);
          share(p.count, 4.0 * p.count * std::min(p.n, piece), [&](uint32_t i) {
            const float* x = reinterpret_cast<const float*>(p.at(i));
            found[i] = best_of(x, p.first(i), p.length(i), n);
          });
          for (long row = 0; row < p.count / p.of_row; row++) {
            std::vector<Entry> all;
            for (long i = row * p.of_row; i < (row + 1) * p.of_row; i++) {
              all.insert(all.end(), found[i].begin(), found[i].end());
            }
            std::partial_sort(all.begin(), all.begin() + n, all.end());
            for (size_t i = 0; i < n; i++) {
              ids[row * n + i] = all[i].id;
              values[row * n + i] = all[i].value;
            }
          }
        });
  }

  Arrays plain_all(const Arrays& in) override {
    // A stable sort of everything: among equal values a partition keeps any of them.
    auto order = mx::argsort(mx::negative(in[0], stream()), -1, stream());
    auto end = order.shape();
    end.back() = n_;
    order = mx::slice(order, mx::Shape(end.size(), 0), end, stream());
    return {order, mx::take_along_axis(in[0], order, -1, stream())};
  }

  const char* name() const override {
    return "Top";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    return n_ == static_cast<const Top&>(other).n_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape.back() = n_;
    return {shape, shape};
  }

 private:
  // A heap of the best n so far, the worst of them on top: nearly all of a long row is below it.
  static std::vector<Entry> best_of(const float* x, long first, long length, size_t n) {
    std::vector<Entry> heap;
    heap.reserve(std::min<size_t>(n, length));
    for (long i = 0; i < length; i++) {
      float value = x[i] == x[i] ? x[i] : -std::numeric_limits<float>::infinity();
      Entry entry{value, static_cast<uint32_t>(first + i)};
      if (heap.size() < n) {
        heap.push_back(entry);
        std::push_heap(heap.begin(), heap.end());
      } else if (value > heap.front().value) {
        std::pop_heap(heap.begin(), heap.end());
        heap.back() = entry;
        std::push_heap(heap.begin(), heap.end());
      }
    }
    return heap;
  }

  int n_;
};

// The least logit that is kept when a row's likeliest tokens are kept for as long as those before have less than p
// together. Instead of sorting, the row's weight is put into bins by logit, and only the bin where p is reached is sorted.
class Nucleus : public Node {
 public:
  using Node::Node;

  void encode(const Arrays& in, Arrays& out) override {
    out[0].set_data(mx::allocator::malloc(out[0].nbytes()));
    if (out[0].size() == 0) {
      return;
    }
    mx::cpu::get_command_encoder(stream()).dispatch(
        [p = Pieces(in[0]), at = in[1].data<float>(), step = in[1].size() > 1 ? in[1].strides(0) : 0,
         to = out[0].data<float>()] {
          for (long row = 0; row < p.count / p.of_row; row++) {
            to[row] = threshold(p, row, at[row * step]);
          }
        });
  }

  mx::array plain(const Arrays& in) override {
    auto s = stream();
    auto sorted = mx::negative(mx::sort(mx::negative(in[0], s), -1, s), s);
    auto probabilities = mx::exp(mx::subtract(sorted, mx::logsumexp(in[0], -1, true, s), s), s);
    auto inside = mx::less(mx::cumsum(probabilities, -1, false, false, s), in[1], s);
    auto infinity = mx::array(std::numeric_limits<float>::infinity());
    return mx::min(mx::where(inside, sorted, infinity, s), -1, true, s);
  }

  const char* name() const override {
    return "Nucleus";
  }
  bool is_equivalent(const mx::Primitive&) const override {
    return true;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[1].shape()};
  }

 private:
  // 64 bins to a factor of e, for weights down to e^-32 of the largest; what is below has the last bin.
  static constexpr long bins = 2048;
  static long bin(float below) {
    return below < 32 ? static_cast<long>(below * 64) : bins - 1;
  }

  static float threshold(const Pieces& p, long row, float probability) {
    const float* x = reinterpret_cast<const float*>(p.rows(row, workspace(p.n)));
    float best = 0;
    kernels().rows[0].argmax(x, p.n, &best);
    std::vector<double> weights(p.of_row * bins);
    share(p.of_row, 16.0 * p.n, [&](uint32_t i) {
      const float* own = x + p.first(i);
      std::vector<float> e(p.length(i));
      kernels().weights(own, best, p.length(i), e.data());
      for (long j = 0; j < p.length(i); j++) {
        if (e[j] > 0) {
          weights[i * bins + bin(best - own[j])] += e[j];
        }
      }
    });
    for (long i = 1; i < p.of_row; i++) {
      for (long b = 0; b < bins; b++) {
        weights[b] += weights[i * bins + b];
      }
    }
    double wanted = probability * std::accumulate(weights.begin(), weights.begin() + bins, 0.0), before = 0;
    long crossing = 0;
    while (crossing < bins - 1 && before + weights[crossing] < wanted) {
      before += weights[crossing++];
    }
    std::vector<float> near;
    for (long i = 0; i < p.n; i++) {
      if (best - x[i] >= 0 && bin(best - x[i]) == crossing) {
        near.push_back(x[i]);
      }
    }
    std::sort(near.begin(), near.end(), std::greater<>());
    float least = best;
    for (float value : near) {
      if (before >= wanted) {
        break;
      }
      least = value;
      before += std::exp(static_cast<double>(value) - best);
    }
    return least;
  }
};

bool is_row(const mx::array& x) {
  return x.ndim() > 0 && x.shape(-1) > 0;
}

} // namespace

std::optional<mx::array> argmax(const mx::array& x, mx::Stream s) {
  if (!is_row(x) || !is_float(x.dtype())) {
    return std::nullopt;
  }
  auto node = std::make_shared<ArgMax>(s);
  return mx::array(node->output_shapes({x}).at(0), mx::uint32, node, {x});
}

std::optional<Arrays> top(const mx::array& x, int n, mx::Stream s) {
  if (!is_row(x) || x.dtype() != mx::float32 || n < 1 || n > x.shape(-1)) {
    return std::nullopt;
  }
  auto node = std::make_shared<Top>(s, n);
  return mx::array::make_arrays(node->output_shapes({x}), {mx::uint32, mx::float32}, node, {x});
}

Arrays top_plainly(const mx::array& x, int n, mx::Stream s) {
  return Top(s, n).plain_all({x});
}

std::optional<mx::array> nucleus(const mx::array& x, const mx::array& p, mx::Stream s) {
  bool usual = x.ndim() == 2 && is_row(x) && x.dtype() == mx::float32 && p.dtype() == mx::float32 &&
      p.shape() == mx::Shape{x.shape(0), 1};
  if (!usual) {
    return std::nullopt;
  }
  return mx::array(p.shape(), mx::float32, std::make_shared<Nucleus>(s), {x, p});
}

mx::array nucleus_plainly(const mx::array& x, const mx::array& p, mx::Stream s) {
  return Nucleus(s).plain({x, p});
}

} // namespace mlxrs::fused
