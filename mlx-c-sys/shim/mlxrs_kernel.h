/* CPU kernels of the caller as nodes of the graph. The conventions are those of mlxrs.h. */
#ifndef MLXRS_KERNEL_H
#define MLXRS_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mlx/c/mlx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One operand of a kernel, row-contiguous. The kernel reads inputs and fills outputs. `data` may be null if `size` is
 * 0. */
typedef struct mlxrs_view {
  void* data;
  const int32_t* shape;
  const int64_t* strides; /* in elements */
  size_t ndim;
  size_t size; /* in elements */
  mlx_dtype dtype;
} mlxrs_view;

/* The functions of a kernel. The table must have static lifetime. A null entry means that the kernel does not support
 * the operation. All functions except `eval` and `drop` are called on the thread that builds or transforms the graph. */
typedef struct mlxrs_kernel_vtable {
  const char* name; /* shown in errors and graph dumps */
  /* Fills the outputs. Called on the stream's worker thread; calls for other arrays may run at the same time with the
   * same `ud`. Must not call MLX. On failure returns non-zero and writes a null-terminated text to `err`. */
  int (*eval)(
      const void* ud,
      const mlxrs_view* in,
      size_t nin,
      const mlxrs_view* out,
      size_t nout,
      char* err,
      size_t errlen);
  /* Computes the cotangents of the inputs in `argnums` from the cotangents of the outputs (one for each). `res` gets
   * n_argnums arrays. The function must not free the vectors that are passed in. */
  int (*vjp)(
      const void* ud,
      mlx_vector_array* res,
      mlx_vector_array primals,
      mlx_vector_array cotangents,
      const int* argnums,
      size_t n_argnums,
      mlx_vector_array outputs);
  /* Maps over axes[i] of input i (-1: not mapped). `res` gets the outputs, `out_axes` the mapped axis of each output. */
  int (*vmap)(
      const void* ud,
      mlx_vector_array* res,
      int* out_axes,
      mlx_vector_array inputs,
      const int* axes);
  /* Shape of output `index` for inputs of other shapes (shapeless compile). The views have no data and no valid
   * strides. `shape` has room for MLXRS_MAX_NDIM sizes. */
  int (*output_shape)(
      const void* ud,
      size_t index,
      const mlxrs_view* in,
      size_t nin,
      int32_t* shape,
      size_t* ndim);
  /* True if two kernels with this vtable compute the same results, so that equal nodes can be merged. */
  bool (*equivalent)(const void* a, const void* b);
  /* Frees `ud`, once, on any thread. */
  void (*drop)(void* ud);
  /* Index of the input whose buffer may be reused for output 0, or -1. MLX reuses it if nothing else needs the input, and
   * if element size and number of elements are equal. The kernel must then support output 0 in the input's memory. */
  int donate_input;
} mlxrs_kernel_vtable;

#define MLXRS_MAX_NDIM 32

/* The lazy outputs of a kernel for the inputs `in`, which are made row-contiguous first. The function owns `ud` in every
 * case. Fails for a stream that is not on the CPU. */
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

/* A number that a compiled kernel gets by value: of a bool or a 32-bit integer `integer`, of a 32-bit float `real`. */
typedef enum mlxrs_scalar_kind { MLXRS_SCALAR_BOOL, MLXRS_SCALAR_INT, MLXRS_SCALAR_FLOAT } mlxrs_scalar_kind;
typedef struct mlxrs_scalar {
  mlxrs_scalar_kind kind;
  int32_t integer;
  float real;
} mlxrs_scalar;

/* A CUDA kernel that is compiled already, and its launch. `binary` is a cubin or PTX text, in which `name` is the name
 * of the kernel. The sizes of `grid` are threads. `init_value` may be null. */
typedef struct mlxrs_precompiled {
  const char* name;
  const char* binary;
  size_t binary_size;
  const mlxrs_scalar* scalars;
  size_t nscalars;
  int grid[3];
  int thread_group[3];
  int shared_memory; /* dynamic, of a block, in bytes */
  const float* init_value;
} mlxrs_precompiled;

/* The lazy outputs of the kernel, whose arguments are pointers to the inputs, which are made row-contiguous first, then
 * pointers to the outputs, then the scalars. Fails without the CUDA back end. */
int mlxrs_precompiled_cuda_kernel(
    mlx_vector_array* res,
    const mlxrs_precompiled* kernel,
    mlx_vector_array inputs,
    const int* const* out_shapes,
    const size_t* out_ndims,
    const mlx_dtype* out_dtypes,
    size_t nout,
    mlx_stream s);

/* The number of kernels that are alive, for leak tests. */
size_t mlxrs_kernel_live(void);

#ifdef __cplusplus
}
#endif

#endif
