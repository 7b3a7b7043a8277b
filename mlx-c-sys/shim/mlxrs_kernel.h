/* CPU kernels that a caller brings, as nodes of the graph. The conventions are those of mlxrs.h. */
#ifndef MLXRS_KERNEL_H
#define MLXRS_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mlx/c/mlx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One operand of a kernel. Inputs are row-contiguous and read-only; outputs are row-contiguous and to be filled.
 * `data` may be null when `size` is 0. */
typedef struct mlxrs_view {
  void* data;
  const int32_t* shape;
  const int64_t* strides; /* in elements */
  size_t ndim;
  size_t size; /* in elements */
  mlx_dtype dtype;
} mlxrs_view;

/* The functions of a kernel. They must live for ever (a static). A null entry is an operation that the kernel does
 * not support. All entries but `eval` and `drop` run on the thread that builds or transforms the graph. */
typedef struct mlxrs_kernel_vtable {
  const char* name; /* shown in errors and graph dumps */
  /* Fills the outputs. Runs on the stream's worker thread, concurrently with itself for other arrays: `ud` is shared.
   * Must not call MLX. On failure returns non-zero with a terminated text in `err`. */
  int (*eval)(
      const void* ud,
      const mlxrs_view* in,
      size_t nin,
      const mlxrs_view* out,
      size_t nout,
      char* err,
      size_t errlen);
  /* Pulls cotangents (one an output) back to the inputs named by `argnums`: `res` gets n_argnums arrays. The vectors
   * passed in are lent: do not free them. */
  int (*vjp)(
      const void* ud,
      mlx_vector_array* res,
      mlx_vector_array primals,
      mlx_vector_array cotangents,
      const int* argnums,
      size_t n_argnums,
      mlx_vector_array outputs);
  /* Maps over axes[i] of input i (-1: not mapped). `res` gets the outputs, `out_axes` (one an output) their axes. */
  int (*vmap)(
      const void* ud,
      mlx_vector_array* res,
      int* out_axes,
      mlx_vector_array inputs,
      const int* axes);
  /* Shape of output `index` for inputs of other shapes (shapeless compile); the views have no data and
   * their strides mean nothing. `shape` has room for MLXRS_MAX_NDIM. */
  int (*output_shape)(
      const void* ud,
      size_t index,
      const mlxrs_view* in,
      size_t nin,
      int32_t* shape,
      size_t* ndim);
  /* True when two kernels with this same vtable compute the same, so that equal nodes can be merged. */
  bool (*equivalent)(const void* a, const void* b);
  /* Frees `ud`, once, on any thread. */
  void (*drop)(void* ud);
  /* Index of the input whose buffer may become output 0 when MLX does not need it any more (with the same element
   * size and the same number of elements), or -1. The kernel must then support an output that is the input's memory. */
  int donate_input;
} mlxrs_kernel_vtable;

#define MLXRS_MAX_NDIM 32

/* The lazy outputs of a kernel over `in`. Inputs are made row-contiguous first. `ud` is taken in every case.
 * Fails for a stream that is not on the CPU. */
int mlxrs_kernel_apply(
    mlx_vector_array* res,
    const mlxrs_kernel_vtable* vt,
    void* ud,
    const mlx_array* in,
    size_t nin,
    const int* const* out_shapes,
    const size_t* out_ndims,
    const mlx_dtype* out_dtypes,
    size_t nout,
    mlx_stream s);

/* How many kernel nodes are alive, for leak tests. */
size_t mlxrs_kernel_live(void);

#ifdef __cplusplus
}
#endif

#endif
