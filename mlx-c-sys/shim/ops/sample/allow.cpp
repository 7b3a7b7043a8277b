// Masks of allowed tokens as one node, for NVIDIA GPUs. The CPU kernel and the plain form are in mlx-core
// (fast/allow.rs).
#include "ops/border.h"
#include "sample.h"

#ifdef MLXRS_CUDA
#include "cuda/allow.h"
#include "cuda/launch.h"
#endif

namespace mlxrs::ops {
namespace {

#ifdef MLXRS_CUDA
class Allow : public NodeWith<> {
 public:
  using NodeWith::NodeWith;

  void encode(const Arrays&, Arrays&) override {
    throw std::logic_error("masks of tokens are nodes on GPUs only");
  }
  void encode_cuda(const Arrays& in, Arrays& out) override {
    auto& y = out[0];
    cuda::allocate(y, stream());
    cuda::Launch launch(stream());
    cuda::AllowArgs args{launch.read_dense(in[0]), launch.read_dense<uint32_t>(in[1]), launch.write(y), y.shape(1), in[1].shape(1),
                         static_cast<int64_t>(y.size())};
    unsigned blocks = std::min(cuda::blocks_of(args.all, 1024), 8192u);
    launch.run("sample/allow", std::string("allow_") + cuda::name_of(y.dtype()), blocks, 256, args);
  }
  mx::array plain(const Arrays&) override {
    throw std::invalid_argument("a mask of tokens cannot be transformed");
  }
  const char* name() const override {
    return "Allow";
  }
};
#endif

std::optional<mx::array> allow([[maybe_unused]] const mx::array& x, [[maybe_unused]] const mx::array& bits, [[maybe_unused]] mx::Stream s) {
#ifdef MLXRS_CUDA
  bool fits = s.device == mx::Device::gpu && is_float(x.dtype()) && x.ndim() == 2 && x.size() > 0 && bits.dtype() == mx::uint32 &&
      bits.shape() == mx::Shape{x.shape(0), (x.shape(1) + 31) / 32};
  if (fits) {
    return mx::array(x.shape(), x.dtype(), std::make_shared<Allow>(s), {x, bits});
  }
#endif
  return std::nullopt;
}

} // namespace
} // namespace mlxrs::ops

using namespace mlxrs;

extern "C" int mlxrs_fast_allow(mlx_array* res, mlx_array x, mlx_array bits, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    auto none = []() -> mx::array {
      throw std::invalid_argument("a mask of tokens needs kernels for the GPU, and logits [B, V] of floating point");
    };
    auto y = ops::run(
        MLXRS_OP_SAMPLE, stream, [&] { return ops::allow(mlx_array_get_(x), mlx_array_get_(bits), stream); }, none);
    mlx_array_set_(*res, y);
  });
}
