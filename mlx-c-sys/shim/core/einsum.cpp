// The order of contractions of MLX's einsum, which mlx-c does not bind.
#include "mlx/c/private/string.h"
#include "mlx/einsum.h"

#include "guard.h"

using namespace mlxrs;

extern "C" int mlxrs_einsum_path(
    mlx_vector_int* path,
    mlx_string* report,
    const char* subscripts,
    mlx_vector_array operands) {
  return guarded([&] {
    auto [steps, text] = mx::einsum_path(subscripts, mlx_vector_array_get_(operands));
    std::vector<int> flat;
    for (const auto& step : steps) {
      flat.push_back(static_cast<int>(step.size()));
      flat.insert(flat.end(), step.begin(), step.end());
    }
    mlx_vector_int_set_(*path, std::move(flat));
    mlx_string_set_(*report, std::move(text));
  });
}
