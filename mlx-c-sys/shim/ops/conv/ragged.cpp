// The node of causal convolutions over ragged rows. A CPU task computes up to 2,048 channels of one token; when all
// tokens are computed, a task moves the windows of one row.
#include "conv.h"

#ifdef MLXRS_CUDA
#include "cuda/conv.h"
#endif

namespace mlxrs::ops {
namespace {

struct Settings {
  bool silu, has_bias;

  bool operator==(const Settings&) const = default;
};

// The inputs of a row before and at a token: those of the step, and before its tokens those of its state.
struct Windows {
  Vectors xs;
  Rows32 rows;
  // [slots, len, n]; null without a pool.
  const char* pool;
  const char* zeros;
  long len, n;
  size_t size;

  // The vector at a place of the row, which is below 0 in its state. Channels begin at `first`. A strided vector is
  // copied to `work`, which has room for all channels.
  const char* at(long row, long place, long first, char* work) const {
    if (place >= 0) {
      return xs(static_cast<uint32_t>(rows.first(row) + place), work) + first * size;
    }
    long slot = rows.before(row);
    return slot < 0 ? zeros : pool + ((slot * len + len + place) * n + first) * size;
  }
};

// Writes the windows of a row after its tokens into their slots, for `own` channels from `first` on. `pool` is that of
// `from`: the old window is copied before a slot is written.
void move_windows(const Windows& from, char* pool, long row, long first, long own) {
  const auto& rows = from.rows;
  long len = from.len, n = from.n, begin = rows.first(row);
  size_t bytes = own * from.size;
  char* work = reinterpret_cast<char*>(workspace((len + 1) * n));
  char* old = work + n * from.size;
  bool has_old = false;
  for (long token = rows.first_after(row); token < begin + rows.tokens(row); token++) {
    long slot = rows.after(row, token), place = token - begin;
    if (slot < 0) {
      continue;
    }
    for (long i = 0; !has_old && place + 1 < len && i < len; i++) {
      std::memcpy(old + i * bytes, from.at(row, i - len, first, work), bytes);
    }
    has_old = has_old || place + 1 < len;
    for (long i = 0; i < len; i++) {
      long at = place + 1 - len + i;
      const char* input = at < 0 ? old + (len + at) * bytes : from.at(row, at, first, work);
      std::memcpy(pool + ((slot * len + i) * n + first) * from.size, input, bytes);
    }
  }
}

// Inputs: x, taps, the bias if there is one, and the rows.
class RaggedConv : public RaggedNode<Settings> {
 public:
  using RaggedNode::RaggedNode;

  // `encode` writes into an input buffer or allocates a new one.
  bool allocate(const Arrays&, Arrays& out) override {
    auto& y = out[0];
    y.set_data(mx::allocator::malloc(y.nbytes()));
    return true;
  }

  void encode(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    constexpr long piece = conv_piece;
    long tokens = y.shape(1), n = y.shape(2), count = in[1].shape(0), pieces = (n + piece - 1) / piece;
    char* pool = nullptr;
    if (rows_.has_pool) {
      begin_pool(in, rows_, out[1], stream());
      pool = out[1].data<char>();
    }
    size_t size = y.itemsize();
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, conv = kernels().recurrent[static_cast<int>(type_of(y.dtype()))].conv, xs = Vectors(in[0]), taps = RowMajor(in[1]),
         bias = settings_.has_bias ? RowMajor(in[2]) : RowMajor(), silu = settings_.silu, to = y.data<char>(),
         reader = RowReader("causal convolution", Ragged::of(in, rows_), tokens)] {
          std::vector<char> of_rows[3], copies[2], zeros(std::min(piece, n) * size);
          auto rows = reader.get(of_rows);
          const char *weights = taps.get(copies[0]), *biases = bias.get(copies[1]);
          Windows windows{xs, rows, pool, zeros.data(), count - 1, n, size};
          long used = rows.used();
          std::vector<int32_t> row_of(used);
          for (long row = 0; row < rows.count; row++) {
            std::fill(row_of.begin() + rows.first(row), row_of.begin() + rows.first(row) + rows.tokens(row), row);
          }
          share(static_cast<uint32_t>(used * pieces), 2.0 * (count + 4) * used * n, [&](uint32_t i) {
            long token = i / pieces, first = i % pieces * piece, row = row_of[token], place = token - rows.first(row);
            char* work = reinterpret_cast<char*>(workspace(count * n));
            const void* x[most_taps];
            for (long j = 0; j < count; j++) {
              x[j] = windows.at(row, place - (count - 1) + j, first, work + j * n * size);
            }
            const char* own = biases != nullptr ? biases + first * size : nullptr;
            conv(x, weights + first * size, own, count, n, std::min(piece, n - first), silu, to + (token * n + first) * size);
          });
          std::memset(to + used * n * size, 0, (tokens - used) * n * size);
          if (pool != nullptr) {
            share(static_cast<uint32_t>(rows.count * pieces), static_cast<double>(rows.count * count * n), [&](uint32_t i) {
              long first = i % pieces * piece;
              move_windows(windows, pool, i / pieces, first, std::min(piece, n - first));
            });
          }
        });
  }

#ifdef MLXRS_CUDA
  void encode_cuda(const Arrays& in, Arrays& out) override {
    if (rows_.has_pool) {
      begin_pool(in, rows_, out[1], stream());
    }
    ragged_conv_on_cuda(own(in), settings_.silu, Ragged::of(in, rows_), out, stream());
  }
#endif

  Arrays plain_all(const Arrays& in) override {
    return ragged_conv_plainly(own(in), settings_.silu, Ragged::of(in, rows_), stream());
  }

  const char* name() const override {
    return "RaggedConv";
  }
  std::vector<mx::Shape> output_shapes(const Arrays& in) override {
    std::vector<mx::Shape> shapes{in[0].shape()};
    if (rows_.has_pool) {
      shapes.push_back(Ragged::of(in, rows_).pool->shape());
    }
    return shapes;
  }

 private:
  // x, taps, and the bias if there is one.
  Arrays own(const Arrays& in) const {
    return {in.begin(), in.begin() + 2 + settings_.has_bias};
  }
};

} // namespace

std::optional<Arrays> ragged_conv(const Arrays& in, bool silu, const Ragged& rows, mx::Stream s) {
  auto dtype = in[0].dtype();
  bool same = std::all_of(in.begin(), in.end(), [&](const mx::array& a) { return a.dtype() == dtype; });
  bool fits = s.device == mx::Device::cpu || (takes(s, in[0]) && !is_traced({&in[1], &in.back(), rows.pool ? &*rows.pool : &in[0]}));
  if (!is_float(dtype) || !same || in[1].shape(0) > most_taps || !fits) {
    return std::nullopt;
  }
  auto node = std::make_shared<RaggedConv>(s, Settings{silu, in.size() > 2}, rows.settings);
  auto inputs = in;
  rows.append(inputs);
  auto shapes = node->output_shapes(inputs);
  std::vector<mx::Dtype> dtypes(shapes.size(), dtype);
  return mx::array::make_arrays(std::move(shapes), dtypes, std::move(node), std::move(inputs));
}

} // namespace mlxrs::ops
