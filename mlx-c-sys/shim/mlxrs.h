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

/* How many operations wait to be evaluated for `outputs`. */
int mlxrs_graph_size(size_t* res, mlx_vector_array outputs);
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
 * As mlx_fast_rms_norm and mlx_fast_rope_dynamic, and more, but one node each on the CPU too, in the usual cases: F32, F16
 * or BF16 arrays of one dtype. `weight`, `freqs` and `sinks` may be null. */
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
/* softmax(cap(scale q k^T) + mask) v, where cap(x) is soft_cap * tanh(x / soft_cap), or x when soft_cap is 0. `sinks`, [H],
 * may be null. `seen` is 0: everything; 1: causal, the last query sees everything; 2: what the array `told` says, as in
 * mlx_fast_scaled_dot_product_attention; 3: what positions say. There, `told` is I32 [B] or [1], the position of each
 * row's first query. A query sees its own position and those before it, with a `window` (else 0) only the last so many.
 * `layout` says where keys are. 0: slot j has position j; 1: slot j of S has the last position congruent to j; 2: the last
 * L slots have the queries' own positions, and those before them what comes before.
 * What is masked or beyond the last position costs nothing with 1 and 3.
 * Where `bits` are not 0, keys and values are what mlxrs_fast_pack makes of arrays of the queries' dtype. */
int mlxrs_fast_attention(
    mlx_array* res,
    mlx_array queries,
    mlx_array keys,
    mlx_array values,
    float scale,
    float soft_cap,
    int seen,
    int layout,
    int window,
    int bits,
    int group_size,
    mlx_array told,
    mlx_array sinks,
    mlx_stream s);
/* Two buffers of a cache, [B, K, S, D] each, with new tokens [B, K, L, D] in slots `offsets` (I32 [B] or [1]) and following;
 * modulo S in a `ring`. Where `bits` are not 0, buffers hold what mlxrs_fast_pack makes of new tokens. With `in_place` it
 * writes into the buffers on the promises of mlxrs_force_donate, where our kernels run; else it copies them. */
int mlxrs_fast_store(
    mlx_array* first,
    mlx_array* second,
    mlx_array first_buffer,
    mlx_array second_buffer,
    mlx_array first_new,
    mlx_array second_new,
    mlx_array offsets,
    int bits,
    int group_size,
    bool ring,
    bool in_place,
    mlx_stream s);
/* The vectors along the last axis of x, [.., D], affinely quantised to 4 or 8 `bits` in groups of 32, 64 or 128:
 * [.., words] U32. First the codes, D * bits / 32 words, as mlx_quantize packs them; then scale and bias of each group, in
 * the dtype of x. */
int mlxrs_fast_pack(mlx_array* res, mlx_array x, int bits, int group_size, mlx_stream s);
/* Whether our own kernels run on this stream. */
int mlxrs_fast_kernels(bool* res, mlx_stream s);
/* x @ weight.T, for `weight` [.., out, in]. */
int mlxrs_fast_linear(mlx_array* res, mlx_array x, mlx_array weight, mlx_stream s);
/* mlx_quantized_matmul(x, packed, ..) with `transpose`. `biases` may be null. */
int mlxrs_fast_packed_linear(
    mlx_array* res,
    mlx_array x,
    mlx_array packed,
    mlx_array scales,
    mlx_array biases,
    int group_size,
    int bits,
    const char* mode,
    mlx_stream s);
/* The same arrays: where they are products of one x by mlxrs_fast_linear or mlxrs_fast_packed_linear that are not computed yet, as
 * the outputs of one operation. */
int mlxrs_fast_together(mlx_vector_array* res, mlx_vector_array products, mlx_stream s);
/* x [.., 1, in] by the matrix of weight [experts, out, in] that indices name: mlx_gather_mm or, where `scales` is not null,
 * mlx_gather_qmm, without indices on the left. */
int mlxrs_fast_experts(
    mlx_array* res,
    mlx_array x,
    mlx_array weight,
    mlx_array scales,
    mlx_array biases,
    mlx_array indices,
    int group_size,
    int bits,
    const char* mode,
    mlx_stream s);
/* Rows of weight [rows, in], which indices name, in dtype: mlx_take and, where `scales` is not null, mlx_dequantize. */
int mlxrs_fast_lookup(
    mlx_array* res,
    mlx_array indices,
    mlx_array weight,
    mlx_array scales,
    mlx_array biases,
    int group_size,
    int bits,
    const char* mode,
    mlx_dtype dtype,
    mlx_stream s);
/* Has the program wait at its end for what streams of the CPU still compute. To be called before their first use. */
int mlxrs_finish_at_exit(void);
/* Zeros, of which big ones take memory where they are touched only: mlx_zeros. */
int mlxrs_fast_blank(mlx_array* res, const int* shape, size_t shape_num, mlx_dtype dtype, mlx_stream s);
/* gate * sigmoid(gate) * up, or gelu(gate) * up with the tanh approximation of gelu. */
int mlxrs_fast_gated(mlx_array* res, bool gelu, mlx_array gate, mlx_array up, mlx_stream s);
/* Along the last axis: the place of the first of the largest; the n largest, best first, equal ones in the order of their
 * places; and of rows [B, V] the least element that is kept, [B, 1], when the likeliest are kept while those before have
 * less than p, [B, 1], together. What is no number is never chosen. */
int mlxrs_fast_argmax(mlx_array* res, mlx_array x, mlx_stream s);
int mlxrs_fast_top(mlx_array* ids, mlx_array* values, mlx_array x, int n, mlx_stream s);
int mlxrs_fast_nucleus(mlx_array* res, mlx_array x, mlx_array p, mlx_stream s);
/* log(sum(e^x)) along the last axis, F32. */
int mlxrs_fast_logsumexp(mlx_array* res, mlx_array x, mlx_stream s);
/* The next token of rows of logits [B, V], U32 [B]; ~0 where they are no numbers. Only where kernels of ours run. `keys`, U32 [B, 2],
 * are those of a row's noise; `numbers`, F32 [B, 3]: what logits are multiplied by (0: the largest is taken, without noise), p of the
 * nucleus, and how far below the largest a logit may be, as a negative number; `counts`, I32 [B]: how many of the largest take part. A
 * row without such filters has 1, minus infinity and V. */
int mlxrs_fast_draw(mlx_array* res, mlx_array x, mlx_array keys, mlx_array numbers, mlx_array counts, mlx_stream s);
/* cap * tanh(x / cap) */
int mlxrs_fast_soft_cap(mlx_array* res, mlx_array x, float cap, mlx_stream s);
/* residual + x */
int mlxrs_fast_add(mlx_array* res, mlx_array x, mlx_array residual, mlx_stream s);
/* residual + rms_norm(x, weight) */
int mlxrs_fast_rms_norm_add(
    mlx_array* res, mlx_array x, mlx_array weight, mlx_array residual, float eps, mlx_stream s);
/* sum = residual + x, or residual + rms_norm(x, inner_weight) where that is not null; normed = rms_norm(sum, weight). */
int mlxrs_fast_add_rms_norm(
    mlx_array* sum,
    mlx_array* normed,
    mlx_array x,
    mlx_array residual,
    mlx_array inner_weight,
    mlx_array weight,
    float eps,
    mlx_stream s);
/* From a projection [B, L, H dim] to heads [B, H, L, dim], each normed where `weight` is not null, and rotated in its
 * first `dims` elements: mlxrs_fast_rope with `freqs`. */
int mlxrs_fast_heads(
    mlx_array* res,
    mlx_array x,
    int dim,
    mlx_array weight,
    float eps,
    int dims,
    mlx_array offset,
    mlx_array freqs,
    mlx_stream s);

/* logsumexp(logits) - logits[target] over the last axis; one node for f32 logits. */
int mlxrs_fast_cross_entropy(mlx_array* res, mlx_array logits, mlx_array targets, mlx_stream s);

/* From the start to the end, each node of this library is timed on the CPU streams that compute it. There is one profile in a process: a
 * start ends the one before it. The end tells of each name how often it was there and the seconds that it took; "" is the time from one
 * node to the next of its stream. A node that is still computed then is not told. */
void mlxrs_profile_start(void);
void mlxrs_profile_end(void* to, void (*tell)(void* to, const char* name, uint64_t times, double seconds));

/* How many kernel nodes are alive, for leak tests. */
size_t mlxrs_kernel_live(void);

#ifdef __cplusplus
}
#endif

#endif
