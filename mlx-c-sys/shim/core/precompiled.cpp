// CUDA kernels that are compiled already, which mlx-c does not bind.
#include <string>

#include "mlx/fast.h"

#include "guard.h"

using namespace mlxrs;

extern "C" int mlxrs_precompiled_cuda_kernel(
    mlx_vector_array* res,
    const mlxrs_precompiled* kernel,
    mlx_vector_array inputs,
    const int* const* out_shapes,
    const size_t* out_ndims,
    const mlx_dtype* out_dtypes,
    size_t nout,
    mlx_stream s) {
  return guarded([&] {
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> dtypes;
    for (size_t i = 0; i < nout; i++) {
      dtypes.push_back(dtype_of(out_dtypes[i]));
      shapes.push_back(shape_of(out_shapes[i], out_ndims[i], mx::size_of(dtypes.back())));
    }
    std::vector<mx::fast::ScalarArg> scalars;
    for (size_t i = 0; i < kernel->nscalars; i++) {
      const auto& scalar = kernel->scalars[i];
      switch (scalar.kind) {
        case MLXRS_SCALAR_BOOL:
          scalars.emplace_back(scalar.integer != 0);
          break;
        case MLXRS_SCALAR_INT:
          scalars.emplace_back(scalar.integer);
          break;
        case MLXRS_SCALAR_FLOAT:
          scalars.emplace_back(scalar.real);
          break;
        default:
          throw std::invalid_argument("unknown kind of scalar " + std::to_string(static_cast<int>(scalar.kind)));
      }
    }
    const auto& [gx, gy, gz] = kernel->grid;
    const auto& [tx, ty, tz] = kernel->thread_group;
    auto outputs = mx::fast::precompiled_cuda_kernel(
        kernel->name,
        std::string(kernel->binary, kernel->binary_size),
        mlx_vector_array_get_(inputs),
        shapes,
        dtypes,
        scalars,
        {gx, gy, gz},
        {tx, ty, tz},
        kernel->shared_memory,
        kernel->init_value == nullptr ? std::nullopt : std::optional<float>(*kernel->init_value),
        true,
        mlx_stream_get_(s));
    mlx_vector_array_set_(*res, std::move(outputs));
  });
}
