// The nodes of reductions over a vocabulary: argmax, top-n, logsumexp, and the threshold of top-p.
#include "sample.h"
#include "vocabulary.h"

#ifdef MLXRS_CUDA
#include "cuda/draw.h"
#endif

namespace mlxrs::ops {
namespace {

// The base of nodes that compute one number for each row: [.., V] -> [..].
class OfRows : public NodeWith<> {
 public:
  using NodeWith::NodeWith;

  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape.pop_back();
    return {shape};
  }
};

class ArgMax : public OfRows {
 public:
  using OfRows::OfRows;

  void encode(const Arrays& in, Arrays& out) override {
    mx::cpu::get_command_encoder(stream()).dispatch([v = Vocabulary(in[0]), to = out[0].data<uint32_t>()]() mutable {
      for (Entry best : v.largest()) {
        *to++ = best.id;
      }
    });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    logsumexp_on_cuda(in[0], true, out[0], stream());
  }
#endif

  mx::array plain(const Arrays& in) override {
    return argmax_plainly(in[0], stream());
  }

  const char* name() const override {
    return "ArgMax";
  }
};

class LogSumExp : public OfRows {
 public:
  using OfRows::OfRows;

  void encode(const Arrays& in, Arrays& out) override {
    dispatch(
        static_cast<uint32_t>(out[0].size()), 10.0 * in[0].size(),
        [v = Vocabulary(in[0]), to = out[0].data<float>()](uint32_t row) {
          to[row] = v.kernels().logsumexp(v.row(row), v.size());
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    logsumexp_on_cuda(in[0], false, out[0], stream());
  }
#endif

  mx::array plain(const Arrays& in) override {
    return logsumexp_plainly(in[0], stream());
  }

  const char* name() const override {
    return "LogSumExp";
  }
};

// The n largest elements. The setting is n.
class Top : public NodeWith<int> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    mx::cpu::get_command_encoder(stream()).dispatch(
        [v = Vocabulary(in[0]), n = static_cast<long>(settings_), ids = out[0].data<uint32_t>(), values = out[1].data<float>()] {
          auto peaks = v.peaks();
          share(static_cast<uint32_t>(v.rows()), static_cast<double>(v.rows()) * v.size(), [&](uint32_t row) {
            auto best = v.contenders(v.row(row), peaks.of(row), n);
            std::partial_sort(best.begin(), best.begin() + n, best.end());
            for (long i = 0; i < n; i++) {
              ids[row * n + i] = best[i].id;
              values[row * n + i] = best[i].value;
            }
          });
        });
  }

  Arrays plain_all(const Arrays& in) override {
    return top_plainly(in[0], settings_, stream());
  }

  const char* name() const override {
    return "Top";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    auto shape = in[0].shape();
    shape.back() = settings_;
    return {shape, shape};
  }
};

// The threshold of top-p (see sample.h).
class Nucleus : public NodeWith<> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays& in, Arrays& out) override {
    mx::cpu::get_command_encoder(stream()).dispatch(
        [v = Vocabulary(in[0]), p = in[1].data<float>(), step = in[1].size() > 1 ? in[1].strides(0) : 0,
         to = out[0].data<float>()] {
          auto peaks = v.peaks();
          share(static_cast<uint32_t>(v.rows()), 16.0 * v.rows() * v.size(), [&](uint32_t row) {
            const char* x = v.row(row);
            to[row] = v.nucleus(x, v.best(x, peaks.of(row)).value, p[row * step]);
          });
        });
  }

  mx::array plain(const Arrays& in) override {
    return nucleus_plainly(in[0], in[1], stream());
  }

  const char* name() const override {
    return "Nucleus";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    return {in[1].shape()};
  }
};

bool is_row(const mx::array& x) {
  return x.ndim() > 0 && x.shape(-1) > 0;
}

template <typename N>
std::optional<mx::array> of_rows(const mx::array& x, mx::Dtype dtype, mx::Stream s) {
  if (!is_row(x) || !is_float(x.dtype()) || (s.device == mx::Device::gpu && (x.is_tracer() || x.size() == 0))) {
    return std::nullopt;
  }
  auto node = std::make_shared<N>(s);
  return mx::array(node->output_shapes({x}).at(0), dtype, node, {x});
}

} // namespace

std::optional<mx::array> argmax(const mx::array& x, mx::Stream s) {
  return of_rows<ArgMax>(x, mx::uint32, s);
}

std::optional<mx::array> logsumexp(const mx::array& x, mx::Stream s) {
  return of_rows<LogSumExp>(x, mx::float32, s);
}

std::optional<Arrays> top(const mx::array& x, int n, mx::Stream s) {
  if (s.device == mx::Device::gpu || !is_row(x) || x.dtype() != mx::float32 || n < 1 || n > x.shape(-1)) {
    return std::nullopt;
  }
  auto node = std::make_shared<Top>(s, n);
  return mx::array::make_arrays(node->output_shapes({x}), {mx::uint32, mx::float32}, node, {x});
}

std::optional<mx::array> nucleus(const mx::array& x, const mx::array& p, mx::Stream s) {
  bool usual = s.device == mx::Device::cpu && x.ndim() == 2 && is_row(x) && x.dtype() == mx::float32 && p.dtype() == mx::float32 &&
      p.shape() == mx::Shape{x.shape(0), 1};
  if (!usual) {
    return std::nullopt;
  }
  return mx::array(p.shape(), mx::float32, std::make_shared<Nucleus>(s), {x, p});
}

} // namespace mlxrs::ops
