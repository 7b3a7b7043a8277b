// The C functions of products with matrices.
#include "border.h"

using namespace mlxrs;

extern "C" int mlxrs_fast_linear(mlx_array* res, mlx_array x, mlxrs_matrix w, mlx_stream s) {
  return guarded([&] {
    mlx_array_set_(*res, ops::linear_in_form(mlx_array_get_(x), ops::parts_of(w), mlx_stream_get_(s)));
  });
}

extern "C" int mlxrs_fast_linear_many(
    mlx_vector_array* res, mlx_array x, const mlxrs_matrix* ws, size_t n, mlx_stream s) {
  return guarded([&] {
    std::vector<ops::Parts> all;
    all.reserve(n);
    for (size_t i = 0; i < n; i++) {
      all.push_back(ops::parts_of(ws[i]));
    }
    mlx_vector_array_set_(*res, ops::linear_many_in_form(mlx_array_get_(x), all, mlx_stream_get_(s)));
  });
}
