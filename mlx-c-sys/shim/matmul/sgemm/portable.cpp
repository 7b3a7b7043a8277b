// The sgemm kernels for any machine, with vectors of four: SSE on x86-64 (with separate multiplications and additions),
// NEON on aarch64.
#include "kernels.h"
#include "matmul/convert.h"

#ifdef __aarch64__
#include <arm_neon.h>
#endif

namespace mlxrs::sgemm {
namespace {

struct Portable {
  using type = Four;
#ifdef __aarch64__
  static constexpr int width = 4, rows = 3, cols = 8, side = 8, wide = 3;
#else
  static constexpr int width = 4, rows = 3, cols = 4, side = 4, wide = 2;
#endif

  static type zero() {
    return type{0, 0, 0, 0};
  }
  static type set1(float x) {
    return type{x, x, x, x};
  }
  static type load(const float* p) {
    return load4(p);
  }
  static type load(const Bf16* p) {
    auto one = [&](int i) { return matmul::from_bf16(p[i].bits); };
    return type{one(0), one(1), one(2), one(3)};
  }
  static type load(const F16* p) {
    auto one = [&](int i) { return matmul::from_f16(p[i].bits); };
    return type{one(0), one(1), one(2), one(3)};
  }
  static Four four(const F16* p) {
    return load(p);
  }
  static type load_part(const float* p, long n) {
    return type{n > 0 ? p[0] : 0, n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, n > 3 ? p[3] : 0};
  }
  static void store(float* p, type x) {
    store4(p, x);
  }
  static type fma(type x, type y, type z) {
#ifdef __aarch64__
    return reinterpret_cast<type>(vfmaq_f32(
        reinterpret_cast<float32x4_t>(z), reinterpret_cast<float32x4_t>(x), reinterpret_cast<float32x4_t>(y)));
#else
    return x * y + z;
#endif
  }
  static type add(type x, type y) {
    return x + y;
  }
  static Four sum4(type a, type b, type c, type d) {
    type ab = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
    type cd = __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
    return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
  }
};

constexpr Kernels kernels = kernels_of<Portable>("portable");

} // namespace

const Kernels& portable() {
  return kernels;
}

} // namespace mlxrs::sgemm
