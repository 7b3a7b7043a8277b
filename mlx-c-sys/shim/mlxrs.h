/* What this project needs of MLX beyond mlx-c, with a C interface.
 *
 * Conventions
 *  - `int` results: 0 is success. On failure the message is in mlxrs_error_get() of the same thread.
 *  - `mlx_array* res` out-parameters follow mlx-c: a null handle is allocated, a live one is assigned into.
 *  - Callbacks never throw, never unwind and never longjmp. They report a failure by returning non-zero, with
 *    the text in mlxrs_error_set() (or in the `err` buffer where there is one).
 */
#ifndef MLXRS_H
#define MLXRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mlx/c/mlx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the MLX headers this library was compiled with, such as "0.32.4". The library that was found at
 * run time says its own in mlx_version(). */
const char* mlxrs_headers_version(void);

/* ---- Errors ---------------------------------------------------------------------------------------------------
 * One slot a thread. It keeps the FIRST message since the last clear, because the later ones of a failing call are
 * only its echoes ("closure returned a non-zero value"). A message is text: "%" in it means nothing.
 * mlx_set_error_handler() is accepted and has no effect: the process is never ended and nothing is printed. */
void mlxrs_error_clear(void);
/* NULL when there is none; valid until the next clear on this thread. */
const char* mlxrs_error_get(void);
/* Reports an error from a callback. The first one since the clear wins; NULL is ignored. */
void mlxrs_error_set(const char* msg);

/* ---- Arrays ---------------------------------------------------------------------------------------------------*/

/* An array over memory that is not MLX's, without a copy. MLX only reads it: it is never donated to an operation and
 * never freed by MLX. `payload` is taken in every case: `dtor(payload)` runs when the last user of the memory is gone
 * (on any thread), or before the return when this fails. `dtor` may be null.
 * Fails when the back end's allocator does not hand out plain host memory (Metal, CUDA), when `data` is not aligned
 * to the element, and for bad shapes. The eight bytes before `data` must belong to the same readable mapping. */
int mlxrs_array_from_foreign(
    mlx_array* res,
    const void* data,
    const int* shape,
    size_t ndim,
    mlx_dtype dtype,
    void* payload,
    void (*dtor)(void*));

/* True while a transform (grad, vmap, compile) traces this array: it has no data and never will. */
int mlxrs_array_is_tracer(bool* res, mlx_array a);
/* True when the array is still the head of a lazy graph, false for a leaf or an evaluated array. */
int mlxrs_array_has_primitive(bool* res, mlx_array a);
/* Address of the first element. Fails when the array is not available. On a GPU back end this may move the data. */
int mlxrs_array_data_ptr(const void** res, mlx_array a);
/* Strides in elements, with their sign (mlx_array_strides casts them to unsigned). `n` must be the rank.
 * Meaningful only after evaluation. */
int mlxrs_array_strides(int64_t* out, size_t n, mlx_array a);
/* Index of a stream, to tell streams apart. */
int mlxrs_stream_index(int* res, mlx_stream s);

/* ---- Updating in place ----------------------------------------------------------------------------------------
 * `lazy` is the unevaluated result of an update of `source` (slice_update, slice_update_dynamic, scatter, ...), of
 * the same shape and dtype. The result computes the same, but writes into source's buffer although earlier steps
 * that read it are still in flight, where MLX by itself would copy the whole of it.
 *
 * The caller promises that nobody reads `source`, or another view of its buffer, in work that is queued later than
 * this update: after the call only the result may be used.
 *
 * When `lazy` does not have `source` among its inputs (slice_update that covers everything returns the update
 * itself), or is evaluated already, `lazy` is returned as it is. At evaluation, a source that is not row-contiguous
 * from the start of a buffer of MLX's own is copied as MLX would do, never overwritten. */
int mlxrs_force_donate(mlx_array* res, mlx_array lazy, mlx_array source);

/* For code that lends out the memory of arrays, on the thread that owns them.
 * Says whether an update in place has written, or is about to write, into a's buffer, and waits for it. A reader must
 * then copy what it wants to keep. */
int mlxrs_array_settle(bool* updated, mlx_array a);
/* Between (true) and (false), which nest, updates that this thread evaluates copy instead of writing in place: a
 * reader may hold a pointer into their buffer. */
void mlxrs_reading(bool begin);
/* Never again is a's buffer donated to an operation or updated in place, through whichever array: other threads may
 * read it from now on. */
int mlxrs_array_pin(mlx_array a);

/* ---- CPU kernels ----------------------------------------------------------------------------------------------*/

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

/* What a kernel can do. Must live for ever (a static); a null entry is an operation that the kernel does not have.
 * All entries but `eval` and `drop` run on the thread that builds or transforms the graph. */
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
  /* Index of the input whose buffer may become output 0 when MLX has no more use for it (same size in bytes an
   * element and in elements), or -1. The kernel must then bear input and output being the same memory. */
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

/* ---- Fused operations ------------------------------------------------------------------------------------------
 * As mlx_fast_rms_norm, mlx_fast_rope_dynamic and mlx_fast_scaled_dot_product_attention, but one node each on the CPU
 * too, in the usual cases: floating-point arrays of one dtype (attention: f32 and no sinks).
 * `weight`, `freqs`, `mask_array` and `sinks` may be null. */
int mlxrs_fast_rms_norm(mlx_array* res, mlx_array x, mlx_array weight, float eps, mlx_stream s);
int mlxrs_fast_rope(
    mlx_array* res,
    mlx_array x,
    int dims,
    bool traditional,
    mlx_optional_float base,
    float scale,
    mlx_array offset,
    mlx_array freqs,
    mlx_stream s);
int mlxrs_fast_attention(
    mlx_array* res,
    mlx_array queries,
    mlx_array keys,
    mlx_array values,
    float scale,
    const char* mask_mode,
    mlx_array mask_array,
    mlx_array sinks,
    mlx_stream s);
/* x @ weight.T, for `weight` [.., out, in]. */
int mlxrs_fast_linear(mlx_array* res, mlx_array x, mlx_array weight, mlx_stream s);
/* gate * sigmoid(gate) * up. */
int mlxrs_fast_swiglu(mlx_array* res, mlx_array gate, mlx_array up, mlx_stream s);

/* How many kernel nodes are alive, for leak tests. */
size_t mlxrs_kernel_live(void);

#ifdef __cplusplus
}
#endif

#endif
