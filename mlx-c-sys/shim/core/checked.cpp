// Nodes that check the indices of gathers and scatters.
#include "checked.h"

#include <limits>

#include "check.h"
#include "elements.h"
#include "runtime/outcomes.h"

#ifdef MLXRS_CUDA
#include "cuda/report.h"
#include "ops/lookup/cuda/check.h"
#endif

namespace {

using namespace mlxrs;

class CheckIndices : public Check {
 public:
  // The axes of the source that the indices are for: one axis for all indices, one axis for each element of the last
  // axis, or (`product`) all axes as one flattened axis. From an index of axis i on, `windows[i]` places must exist.
  struct Of {
    std::vector<int> axes;
    std::vector<int> windows;
    bool product;
    bool from_end;

    bool operator==(const Of&) const = default;
  };

  CheckIndices(mx::Stream s, std::string what, Of of, std::vector<int64_t> sizes)
      : Check(s, std::move(what)), of_(std::move(of)), sizes_(std::move(sizes)) {}

  // The source is an input only if a transformation may change its shape later, because an input cannot be donated.
  static mx::array node(mx::Stream s, std::string what, Of of, const mx::array& indices, const mx::array& source) {
    auto sizes = sizes_of(of, source);
    Arrays inputs{indices};
    if (source.is_tracer()) {
      inputs.push_back(source);
    }
    bool follows = inputs.size() > 1;
    auto node = std::make_shared<CheckIndices>(s, std::move(what), std::move(of), std::move(sizes));
    mx::array checked(indices.shape(), indices.dtype(), std::move(node), std::move(inputs));
    // The result has no derivative with respect to an index.
    return follows ? mx::stop_gradient(checked, s) : checked;
  }

  // For GPUs without our kernels: a graph of MLX's operations in which an index out of range becomes another index of
  // the axis. It is a single node if the range is a whole axis.
  static mx::array bounded(mx::Stream s, const Of& of, const mx::array& indices, const mx::array& source) {
    auto dtype = indices.dtype();
    auto ranges = ranges_of(of, sizes_of(of, source));
    int bits = 8 * static_cast<int>(mx::size_of(dtype)) - !mx::issubdtype(dtype, mx::unsignedinteger);
    int64_t largest = bits < 63 ? (int64_t(1) << bits) - 1 : INT64_MAX;
    if (ranges.size() == 1 && of.windows[0] == 1) {
      // A small dtype cannot hold the size of a large axis.
      int64_t size = ranges[0].most + 1;
      return size > largest ? indices : mx::remainder(indices, mx::array(size, dtype), s);
    }
    std::vector<int64_t> most, least;
    for (const auto& range : ranges) {
      most.push_back(std::min(range.most, largest));
      least.push_back(std::max(-range.from_end, -largest - 1));
    }
    auto row = [&](const std::vector<int64_t>& v) {
      auto all = mx::array(v.begin(), {static_cast<int>(v.size())}, mx::int64);
      return mx::astype(v.size() == 1 ? mx::reshape(all, {}, s) : all, dtype, s);
    };
    auto inside = mx::less_equal(indices, row(most), s);
    if (!mx::issubdtype(dtype, mx::unsignedinteger)) {
      inside = mx::logical_and(inside, mx::greater_equal(indices, row(least), s), s);
    }
    return mx::where(inside, indices, mx::zeros_like(indices, s), s);
  }

  std::pair<Arrays, std::vector<int>> vmap(const Arrays& in, const std::vector<int>& axes) override {
    auto of = of_;
    auto indices = axes[0] > 0 ? mx::moveaxis(in[0], axes[0], 0, stream()) : in[0];
    int mapped = in.size() > 1 ? axes[1] : -1;
    if (mapped >= 0) {
      for (auto& axis : of.axes) {
        axis += axis >= mapped;
      }
    }
    if (in.size() > 1) {
      return {{node(stream(), what_, of, indices, in[1])}, {axes[0] >= 0 ? 0 : -1}};
    }
    auto node = std::make_shared<CheckIndices>(stream(), what_, std::move(of), sizes_);
    return {{mx::array(indices.shape(), indices.dtype(), std::move(node), {indices})}, {axes[0] >= 0 ? 0 : -1}};
  }

#ifdef MLXRS_CUDA
  void eval_gpu(const Arrays& in, Arrays& out) override {
    ops::check_on_cuda(what_, in[0], out[0].size() > 0 ? ranges_for(in) : std::vector<Range>{}, out[0], stream());
  }
#endif

  const char* name() const override {
    return "CheckIndices";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& that = static_cast<const CheckIndices&>(other);
    return of_ == that.of_ && sizes_ == that.sizes_ && what_ == that.what_;
  }

 protected:
  void encode(const Arrays& in, mx::array& x) override {
    auto ranges = ranges_for(in);
    auto& encoder = mx::cpu::get_command_encoder(stream());
    encoder.set_input_array(in[0]);
    encoder.set_output_array(x);
    switch (x.dtype()) {
      case mx::int8:
        return dispatch<int8_t>(encoder, in[0], x, std::move(ranges));
      case mx::int16:
        return dispatch<int16_t>(encoder, in[0], x, std::move(ranges));
      case mx::int32:
        return dispatch<int32_t>(encoder, in[0], x, std::move(ranges));
      case mx::int64:
        return dispatch<int64_t>(encoder, in[0], x, std::move(ranges));
      case mx::uint8:
        return dispatch<uint8_t>(encoder, in[0], x, std::move(ranges));
      case mx::uint16:
        return dispatch<uint16_t>(encoder, in[0], x, std::move(ranges));
      case mx::uint32:
        return dispatch<uint32_t>(encoder, in[0], x, std::move(ranges));
      case mx::uint64:
        return dispatch<uint64_t>(encoder, in[0], x, std::move(ranges));
      default:
        throw std::invalid_argument(what_ + ": indices must be integers");
    }
  }

 private:
  static std::vector<int64_t> sizes_of(const Of& of, const mx::array& source) {
    if (of.product) {
      int64_t size = 1;
      for (int axis : of.axes) {
        size *= source.shape(axis);
      }
      return {size};
    }
    std::vector<int64_t> sizes;
    for (int axis : of.axes) {
      sizes.push_back(source.shape(axis));
    }
    return sizes;
  }

  static std::vector<Range> ranges_of(const Of& of, const std::vector<int64_t>& sizes) {
    std::vector<Range> ranges;
    for (size_t i = 0; i < sizes.size(); i++) {
      ranges.push_back({sizes[i] - of.windows[i], of.from_end ? sizes[i] : 0, sizes[i], of.windows[i]});
    }
    return ranges;
  }

  std::vector<Range> ranges_for(const Arrays& in) const {
    auto ranges = ranges_of(of_, in.size() > 1 ? sizes_of(of_, in[1]) : sizes_);
    for (const auto& range : ranges) {
      if (range.most < 0) {
        // The range is empty, so even index 0 is out of range, and the operation that follows must not run.
        throw std::out_of_range(index_error(what_, 0, range.size, range.window));
      }
    }
    return ranges;
  }

  template <typename T>
  void dispatch(mx::cpu::CommandEncoder& encoder, const mx::array& in, mx::array& x, std::vector<Range> ranges) {
    encoder.dispatch([in = mx::array::unsafe_weak_copy(in), out = x.data<T>(), ranges = std::move(ranges), what = what_]() {
      size_t n = ranges.size();
      bool failed = false;
      T wrong = 0;
      size_t place = 0;
      auto value = [](T given) {
        // A value that exceeds I64 exceeds any axis.
        return std::is_same_v<T, uint64_t> && given > uint64_t(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(given);
      };
      auto refuse = [&](T given, size_t i) {
        if (!failed) {
          failed = true;
          wrong = given;
          place = i;
        }
        return T(0);
      };
      if (n == 1) {
        auto range = ranges[0];
        each<T>(in, out, [&](T given, size_t) { return range.holds(value(given)) ? given : refuse(given, 0); });
      } else {
        each<T>(in, out, [&](T given, size_t i) {
          return ranges[i % n].holds(value(given)) ? given : refuse(given, i % n);
        });
      }
      if (failed) {
        throw std::out_of_range(index_error(what, value(wrong), ranges[place].size, ranges[place].window));
      }
    });
  }

  Of of_;
  std::vector<int64_t> sizes_;
};

} // namespace

namespace mlxrs {

std::string index_error(const std::string& what, int64_t index, int64_t size, int window) {
  auto text = what + ": index " + std::to_string(index) + " is outside an axis of " + std::to_string(size);
  return window > 1 ? text + " for a window of " + std::to_string(window) : text;
}
std::string row_error(int64_t row, int64_t rows) {
  return "a row's number must be below " + std::to_string(rows) + ", given " + std::to_string(row);
}
std::string expert_error(int64_t expert, int64_t experts) {
  return "an expert's index must be below " + std::to_string(experts) + ", given " + std::to_string(expert);
}

mx::array check_indices(
    const std::string& what, const mx::array& indices, const mx::array& source, std::vector<int> axes,
    std::vector<int> windows, bool from_end, mx::Stream s) {
  bool product = axes.empty();
  int ndim = static_cast<int>(source.ndim());
  auto require = [&](bool ok, const std::string& expected) {
    if (!ok) {
      throw std::invalid_argument(what + ": " + expected);
    }
  };
  require(mx::issubdtype(indices.dtype(), mx::integer), "indices must be integers");
  for (int axis = 0; product && axis < ndim - 2; axis++) {
    axes.push_back(axis);
  }
  for (int& axis : axes) {
    axis += axis < 0 ? ndim : 0;
    require(axis >= 0 && axis < ndim, "no such axis among " + std::to_string(ndim) + " dimensions");
  }
  require(windows.size() == (product ? 1 : axes.size()), "one window for each axis");
  bool several = !product && axes.size() > 1;
  require(
      !several || (indices.ndim() > 0 && indices.shape(-1) == static_cast<int>(axes.size())), "one index for each axis");
  CheckIndices::Of of{std::move(axes), std::move(windows), product, from_end};
  if (s.device == mx::Device::cpu) {
    return CheckIndices::node(s, what, std::move(of), indices, source);
  }
#ifdef MLXRS_CUDA
  if (cuda::runs_kernels(s)) {
    // The kernel supports at most this many axes.
    bool fits = indices.ndim() <= cuda::CheckArgs::most_axes;
    return CheckIndices::node(s, what, std::move(of), fits ? indices : mx::contiguous(indices, false, s), source);
  }
#endif
  return CheckIndices::bounded(s, of, indices, source);
}

} // namespace mlxrs

extern "C" int mlxrs_check_indices(
    mlx_array* res,
    mlx_array indices,
    const char* what,
    mlx_array source,
    const int* axes,
    size_t axes_num,
    const int* windows,
    size_t windows_num,
    bool from_end,
    mlx_stream s) {
  return guarded([&] {
    mlx_array_set_(
        *res,
        check_indices(
            what, mlx_array_get_(indices), mlx_array_get_(source), {axes, axes + axes_num},
            {windows, windows + windows_num}, from_end, mlx_stream_get_(s)));
  });
}

extern "C" int mlxrs_check_reports(mlx_vector_array waited, mlx_stream s) {
  return guarded([=] {
#ifdef MLXRS_CUDA
    if (auto error = cuda::finding()) {
      throw std::out_of_range(*error);
    }
#endif
#ifdef __linux__
    if (waited.ctx == nullptr) {
      return confirm(mlx_stream_get_(s), nullptr);
    }
    for (const auto& array : mlx_vector_array_get_(waited)) {
      confirm(mlx_stream_get_(s), &array);
    }
#else
    static_cast<void>(waited), static_cast<void>(s);
#endif
  });
}
