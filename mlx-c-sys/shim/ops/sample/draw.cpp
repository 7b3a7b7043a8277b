// The node that draws the next token of each row. Filters (top-k, top-p, distance from the largest) select logits, and
// the token with the largest of logit * scale + noise is drawn. Noise is computed only for tokens that can win.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "sample.h"
#include "vocabulary.h"

#ifdef MLXRS_CUDA
#include "cuda/draw.h"
#endif

namespace mlxrs::ops {
namespace {

constexpr uint32_t no_token = ~uint32_t{0};

// The settings of each row.
struct Settings {
  const uint32_t* keys;
  const float* numbers;
  const int32_t* counts;
};

// The state of one row: its filters, the best token so far, and whether the token is decided.
struct Row {
  Draw draw;
  Drawn best;
  bool is_done;
};

Row begin(const Vocabulary& v, long i, const float* peaks, bool numbers, const Settings& settings) {
  const char* x = v.row(i);
  float scale = settings.numbers[3 * i], p = settings.numbers[3 * i + 1], least = settings.numbers[3 * i + 2];
  Entry best = v.best(x, peaks);
  bool noise = scale != 0.0f;
  if (!std::isfinite(best.value) || (noise && !numbers)) {
    return {{}, {0, no_token}, true};
  }
  long count = settings.counts[i];
  // Only the largest logit takes part, so noise cannot change the result.
  if (!noise || count == 1) {
    return {{}, {0, best.id}, true};
  }
  Draw draw{x, v.size(), scale, best.value + least, v.size(), {settings.keys[2 * i], settings.keys[2 * i + 1]}};
  if (count < v.size()) {
    auto some = v.contenders(x, peaks, count);
    std::nth_element(some.begin(), some.begin() + (count - 1), some.end());
    if (Entry last = some[count - 1]; last.value >= draw.least) {
      draw.least = last.value;
      draw.last = last.id;
    }
  }
  if (p < 1.0f) {
    if (float kept = v.nucleus(x, best.value, p); kept > draw.least) {
      draw.least = kept;
      draw.last = v.size();
    }
  }
  Row row{draw, {-std::numeric_limits<float>::infinity(), best.id}, false};
  // The largest logit passes every filter. The search begins with it.
  v.kernels().draw_one(draw, best.id, &row.best);
  return row;
}

class Drawing : public NodeWith<> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    mx::cpu::get_command_encoder(stream()).dispatch(
        [v = Vocabulary(in[0]), settings = Settings{in[1].data<uint32_t>(), in[2].data<float>(), in[3].data<int32_t>()},
         ids = out[0].data<uint32_t>(), checked = out[1].data<uint32_t>()] {
          run(v, settings, checked);
          std::transform(checked, checked + v.rows(), ids, [](uint32_t id) { return id == no_token ? 0 : id; });
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    draw_on_cuda(in, out, stream());
  }
#endif

  mx::array plain(const Arrays&) override {
    throw std::invalid_argument("a draw cannot be transformed");
  }

  const char* name() const override {
    return "Draw";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {{in[0].shape(0)}, {in[0].shape(0)}};
  }

 private:
  static void run(const Vocabulary& v, const Settings& settings, uint32_t* to) {
    auto peaks = v.peaks();
    std::vector<Row> rows(v.rows());
    auto work = static_cast<double>(v.rows()) * v.size();
    share(static_cast<uint32_t>(v.rows()), 4.0 * work, [&](uint32_t i) {
      rows[i] = begin(v, i, peaks.of(i), peaks.numbers[i], settings);
    });
    // All tokens are decided (greedy sampling): the peaks needed the only pass over the logits.
    if (std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.is_done; })) {
      for (const Row& row : rows) {
        *to++ = static_cast<uint32_t>(row.best.id);
      }
      return;
    }

    // One hash gives the noise of two ids, so a task is a range of hashes.
    constexpr long piece = 8192;
    long half = v.size() / 2, of_row = (half + piece - 1) / piece;
    std::vector<Drawn> found(v.rows() * of_row);
    share(static_cast<uint32_t>(found.size()), 4.0 * work, [&](uint32_t i) {
      Row row = rows[i / of_row];
      if (!row.is_done) {
        // A strided row is copied again, because the earlier copy is in another thread's workspace.
        row.draw.x = v.row(i / of_row);
        long first = i % of_row * piece;
        v.kernels().draw(row.draw, first, std::min(half, first + piece), &row.best);
      }
      found[i] = row.best;
    });
    for (long i = 0; i < v.rows(); i++) {
      Drawn best = rows[i].best;
      for (long j = i * of_row; j < (i + 1) * of_row; j++) {
        if (found[j].y > best.y || (found[j].y == best.y && found[j].id < best.id)) {
          best = found[j];
        }
      }
      if (!rows[i].is_done && v.size() % 2 == 1) {
        rows[i].draw.x = v.row(i);
        v.kernels().draw_one(rows[i].draw, half, &best);
      }
      to[i] = static_cast<uint32_t>(best.id);
    }
  }
};

} // namespace

std::optional<Arrays> draw(
    const mx::array& x, const mx::array& keys, const mx::array& numbers, const mx::array& counts, mx::Stream s) {
  bool usual = x.ndim() == 2 && x.shape(1) > 0 && (s.device == mx::Device::cpu || x.shape(0) > 0) && is_float(x.dtype()) && keys.dtype() == mx::uint32 &&
      numbers.dtype() == mx::float32 && counts.dtype() == mx::int32;
  int rows = usual ? x.shape(0) : 0;
  usual = usual && keys.shape() == mx::Shape{rows, 2} && numbers.shape() == mx::Shape{rows, 3} && counts.shape() == mx::Shape{rows};
  if (!usual) {
    return std::nullopt;
  }
  return mx::array::make_arrays(
      {{rows}, {rows}}, {mx::uint32, mx::uint32}, std::make_shared<Drawing>(s), {x, keys, numbers, counts});
}

} // namespace mlxrs::ops
