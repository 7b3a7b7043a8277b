// The C functions of RMS norms.
#include "norm.h"
#include "ops/border.h"

using namespace mlxrs;

extern "C" int mlxrs_fast_rms_norm(mlx_array* res, mlx_array x, mlx_array weight, float eps, mlx_stream s) {
  return guarded([&] {
    mlx_array_set_(*res, ops::rms_norm_in_form(mlx_array_get_(x), ops::optional(weight), eps, mlx_stream_get_(s)));
  });
}

extern "C" int mlxrs_fast_add_norm(
    mlx_array* sum,
    mlx_array* normed,
    mlx_array x,
    mlx_array residual,
    mlx_array inner,
    mlx_array outer,
    float eps,
    mlx_stream s) {
  return guarded([&] {
    ops::AddNormInputs of{mlx_array_get_(x), mlx_array_get_(residual), ops::optional(inner), ops::optional(outer), eps};
    auto out = ops::add_norm_in_form(of, mlx_stream_get_(s));
    mlx_array_set_(*sum, out.at(0));
    mlx_array_set_(*normed, out.back());
  });
}
