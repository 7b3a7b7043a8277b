// Checks that numbers are finite before LAPACK gets them.
#include <cmath>

#include "check.h"
#include "elements.h"

namespace {

using namespace mlxrs;

class CheckFinite : public Check {
 public:
  using Check::Check;

  std::pair<Arrays, std::vector<int>> vmap(const Arrays& in, const std::vector<int>& axes) override {
    auto node = std::make_shared<CheckFinite>(stream(), what_);
    return {{mx::array(in[0].shape(), in[0].dtype(), std::move(node), {in[0]})}, {axes[0]}};
  }
  const char* name() const override {
    return "CheckFinite";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    return what_ == static_cast<const CheckFinite&>(other).what_;
  }

 protected:
  void encode(const Arrays& in, mx::array& x) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    encoder.set_input_array(in[0]);
    encoder.set_output_array(x);
    switch (x.dtype()) {
      case mx::float32:
        return dispatch<float>(encoder, in[0], x);
      case mx::float64:
        return dispatch<double>(encoder, in[0], x);
      case mx::complex64:
        return dispatch<mx::complex64_t>(encoder, in[0], x);
      default:
        throw std::invalid_argument(what_ + ": expected F32, F64 or C64");
    }
  }

 private:
  template <typename T>
  void dispatch(mx::cpu::CommandEncoder& encoder, const mx::array& in, mx::array& x) {
    encoder.dispatch([in = mx::array::unsafe_weak_copy(in), out = x.data<T>(), what = what_]() {
      bool finite = true;
      each<T>(in, out, [&](T given, size_t) {
        bool good;
        if constexpr (std::is_same_v<T, mx::complex64_t>) {
          good = std::isfinite(given.real()) && std::isfinite(given.imag());
        } else {
          good = std::isfinite(given);
        }
        finite &= good;
        return good ? given : T(0);
      });
      if (!finite) {
        throw std::domain_error(what + ": the matrix holds NaN or an infinity");
      }
    });
  }
};

} // namespace

#ifndef __APPLE__
// LAPACK calls this for an invalid argument, such as NaN. LAPACK's own function ends the process, and never returns if
// a stream's thread calls it. With this definition the LAPACK routine returns a status, which MLX turns into an error.
extern "C" void xerbla_(const char*, const int*, size_t) {}
#endif

extern "C" int mlxrs_check_finite(mlx_array* res, mlx_array a, const char* what, mlx_stream s) {
  return guarded([&] {
    const auto& x = mlx_array_get_(a);
    mx::Stream stream = mlx_stream_get_(s);
    if (stream.device != mx::Device::cpu) {
      throw std::invalid_argument(std::string(what) + ": this check runs on the CPU only");
    }
    mlx_array_set_(
        *res, mx::array(x.shape(), x.dtype(), std::make_shared<CheckFinite>(stream, what), {x}));
  });
}
