/* What this project needs of MLX beyond mlx-c, with a C interface.
 *
 * Conventions
 *  - `int` results: 0 is success. On failure the message is in mlxrs_error_get() of the same thread.
 *  - `mlx_array* res` out-parameters follow mlx-c: a null handle is allocated, a live one is assigned into.
 *  - Callbacks never unwind. They report a failure by a non-zero result, with its text in mlxrs_error_set() or `err`.
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

/* The version of the MLX headers this library was compiled with ("0.32.4"). That of the MLX in use: mlx_version(). */
const char* mlxrs_headers_version(void);
/* A digest of the sources of this library. A program loads only a library with the digest that it was built with. */
const char* mlxrs_inputs(void);

/* ---- Errors ---------------------------------------------------------------------------------------------------
 * One slot a thread keeps the FIRST message since the last clear: later ones of a failing call only echo it. A message is
 * text: "%" in it means nothing. mlx_set_error_handler() has no effect: nothing is printed and the process goes on. */
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
/* Strides in elements, with their sign, of an evaluated array (mlx_array_strides casts to unsigned). `n` is the rank. */
int mlxrs_array_strides(int64_t* out, size_t n, mlx_array a);
/* Index of a stream, to tell streams apart. */
int mlxrs_stream_index(int* res, mlx_stream s);

/* ---- Checked values -------------------------------------------------------------------------------------------
 * `indices`, of which each must lie in its axis of `source`; `what` names the operation in errors. With one axis it
 * holds for all indices, with several each is for one element of the last axis, and with none the indices are of the
 * flattened leading axes, all but the last two. From an index on, as many places as its axis has in `windows` (one an
 * axis, or one) must exist. Negative indices count from the end if `from_end`, else they are outside.
 * On the CPU the evaluation fails; on a GPU an index that is outside becomes one that is inside. */
int mlxrs_check_indices(
    mlx_array* res,
    mlx_array indices,
    const char* what,
    mlx_array source,
    const int* axes,
    size_t axes_num,
    const int* windows,
    size_t windows_num,
    bool from_end,
    mlx_stream s);
/* `a`, whose evaluation fails where it holds NaN or an infinity. On the CPU, and for F32, F64 and C64. */
int mlxrs_check_finite(mlx_array* res, mlx_array a, const char* what, mlx_stream s);

/* The graphs of `outputs`, traced for all shapes, with reductions that bear axes of size 1 only. */
int mlxrs_any_shape(mlx_vector_array* res, mlx_vector_array outputs);

/* ---- Updating in place ----------------------------------------------------------------------------------------
 * `lazy` is the unevaluated result of an update of `source` (slice_update, slice_update_dynamic, scatter, ...), of
 * the same shape and dtype. The result computes the same, but writes into source's buffer although earlier steps
 * that read it are still in flight, where MLX by itself would copy the whole of it.
 *
 * The caller promises that no work reads `source`, or another view of its buffer, if it is queued later than
 * this update: after the call only the result may be used.
 *
 * When `lazy` does not have `source` among its inputs (slice_update that covers everything returns the update
 * itself), or is evaluated already, `lazy` is returned as it is. At evaluation, a source that is not row-contiguous
 * from the start of a buffer of MLX's own is copied as MLX would do, never overwritten. */
int mlxrs_force_donate(mlx_array* res, mlx_array lazy, mlx_array source);

/* For code that lends out the memory of arrays, on the thread that owns them.
 * Says whether an update in place has written, or is about to write, into a's buffer, and waits for it. A reader must
 * then copy the data that it keeps. */
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
 * Operations of language models. Each has a plain form, a graph of MLX's own operations, and on the CPU a kernel of ours: one node
 * for F32, F16 or BF16 arrays. ops/form.h decides which form runs. Inputs that our kernels do not take go to the plain form.
 * Arrays that may be null are named. */
typedef enum mlxrs_op {
  MLXRS_OP_ATTENTION,
  MLXRS_OP_EXPERTS,
  MLXRS_OP_GATED,
  MLXRS_OP_LINEAR,
  MLXRS_OP_LOOKUP,
  MLXRS_OP_LOSS,
  MLXRS_OP_NORM,
  MLXRS_OP_ROPE,
  MLXRS_OP_SAMPLE,
  MLXRS_OP_STORE,
} mlxrs_op;
typedef enum mlxrs_form {
  MLXRS_FORM_PLAIN,
  MLXRS_FORM_CPU,
} mlxrs_form;
/* The form of an operation on a stream. Fails when MLX_CPU_KERNELS is neither on nor off. */
int mlxrs_fast_form(mlxrs_form* res, mlxrs_op op, mlx_stream s);
/* Between (true) and (false), which nest, operations that this thread builds take the plain form. */
void mlxrs_fast_plainly(bool begin);

/* x / sqrt(mean(x^2) + eps) * weight along the last axis. `weight` may be null. */
int mlxrs_fast_rms_norm(mlx_array* res, mlx_array x, mlx_array weight, float eps, mlx_stream s);
/* sum = residual + x, or residual + rms_norm(x, inner) where `inner` is not null; normed = rms_norm(sum, outer), or the sum where
 * `outer` is null. */
int mlxrs_fast_add_norm(
    mlx_array* sum,
    mlx_array* normed,
    mlx_array x,
    mlx_array residual,
    mlx_array inner,
    mlx_array outer,
    float eps,
    mlx_stream s);

/* Rotary position embedding of x [B, .., L, D]: exactly one of `base` and the array of periods. */
typedef struct mlxrs_rope_options {
  int dims;
  bool traditional;
  mlx_optional_float base;
  float scale;
} mlxrs_rope_options;
/* Token l of row b stands at `offsets` [B] or [1] + l. `freqs`, [dims / 2] or null, are periods. */
int mlxrs_fast_rope(
    mlx_array* res, mlx_array x, mlx_array offsets, mlx_array freqs, mlxrs_rope_options options, mlx_stream s);
/* A projection x [B, L, H head_dim] that becomes heads [B, H, L, head_dim]: each through rms_norm with `weight`, [head_dim], where it is
 * not null, and rotated in its first `dims` elements with the periods `freqs`. */
typedef struct mlxrs_projection {
  mlx_array x;
  mlx_array weight; /* may be null */
  mlx_array freqs;
  mlx_array offsets;
  int head_dim;
  int dims;
  float eps;
} mlxrs_projection;
int mlxrs_fast_heads(mlx_array* res, mlxrs_projection of, mlx_stream s);

/* Which keys a query sees: all; all up to its own, the last query's own being the last key; what an array says, as in
 * mlx_fast_scaled_dot_product_attention; or what follows from positions. */
typedef enum mlxrs_mask {
  MLXRS_MASK_NONE,
  MLXRS_MASK_CAUSAL,
  MLXRS_MASK_ARRAY,
  MLXRS_MASK_POSITIONS,
} mlxrs_mask;
/* Where the keys of MLXRS_MASK_POSITIONS are. Straight: slot j has position j. Ring: slot j of S has the last position congruent to j.
 * Behind: the last L slots have the queries' own positions, and those before them what comes before. */
typedef enum mlxrs_slots {
  MLXRS_SLOTS_STRAIGHT,
  MLXRS_SLOTS_RING,
  MLXRS_SLOTS_BEHIND,
} mlxrs_slots;
typedef struct mlxrs_attention_options {
  float scale;
  float soft_cap; /* 0: none; else scores become soft_cap * tanh(score / soft_cap) */
  mlxrs_mask mask;
  mlxrs_slots slots;
  int window;     /* 0: none; else only the last so many positions are seen, the query's own included */
  int bits;       /* 0: keys and values are of the queries' dtype; else they are what mlxrs_fast_pack gives */
  int group_size;
} mlxrs_attention_options;
/* softmax(cap(scale q k^T) + mask) v. `told` is the array of MLXRS_MASK_ARRAY; for MLXRS_MASK_POSITIONS the position of each row's first
 * query, I32 [B] or [1]; else null. `sinks`, [H], may be null. What positions exclude costs nothing in kernels of ours. */
int mlxrs_fast_attention(
    mlx_array* res,
    mlx_array queries,
    mlx_array keys,
    mlx_array values,
    mlx_array told,
    mlx_array sinks,
    mlxrs_attention_options options,
    mlx_stream s);
/* What positions say, as an array: true where a query sees a key, [B or 1, 1, queries, keys]. */
int mlxrs_fast_dense_mask(
    mlx_array* res, mlx_array offsets, int queries, int keys, mlxrs_slots slots, int window, mlx_stream s);

typedef struct mlxrs_store_options {
  int slots;      /* of new buffers; 0: the buffers are given */
  int bits;       /* as in mlxrs_attention_options */
  int group_size;
  bool ring;      /* slots are modulo their number */
  bool in_place;  /* writes into the buffers, on the promises of mlxrs_force_donate; the plain form copies them */
} mlxrs_store_options;
/* The two buffers of a cache, [B, K, S, D] each, with new tokens [B, K, L, D] in slots `offsets` (I32 [B] or [1]) and following. Both
 * buffers are null where new ones are asked for, which are zero where no token is written. */
int mlxrs_fast_store(
    mlx_array* first,
    mlx_array* second,
    mlx_array k_buffer,
    mlx_array v_buffer,
    mlx_array keys,
    mlx_array values,
    mlx_array offsets,
    mlxrs_store_options options,
    mlx_stream s);
/* The same for keys that are heads of a projection, whose offsets are also those of the slots. */
int mlxrs_fast_store_heads(
    mlx_array* first,
    mlx_array* second,
    mlx_array k_buffer,
    mlx_array v_buffer,
    mlxrs_projection keys,
    mlx_array values,
    mlxrs_store_options options,
    mlx_stream s);
/* Zeros, of which big ones take memory where they are touched only: mlx_zeros. */
int mlxrs_fast_blank(mlx_array* res, const int* shape, size_t shape_num, mlx_dtype dtype, mlx_stream s);
/* The vectors along the last axis of x, [.., D], affinely quantised to 4 or 8 `bits` in groups of 32, 64 or 128:
 * [.., words] U32. First the codes, D * bits / 32 words, as mlx_quantize packs them; then scale and bias of each group, in
 * the dtype of x. */
int mlxrs_fast_pack(mlx_array* res, mlx_array x, int bits, int group_size, mlx_stream s);
/* What packed vectors of arrays of `dtype` stand for, in F32. Plain on every stream. */
int mlxrs_fast_unpack(mlx_array* res, mlx_array words, int bits, int group_size, mlx_dtype dtype, mlx_stream s);

/* A matrix [.., out, in]. Where `scales` is not null, `weight` has its codes, packed as mlx_quantize does; else the last three
 * members mean nothing. */
typedef struct mlxrs_matrix {
  mlx_array weight;
  mlx_array scales; /* may be null */
  mlx_array biases; /* may be null */
  int group_size;
  int bits;
  const char* mode; /* may be null without scales */
} mlxrs_matrix;
/* x @ w.T: mlx_quantized_matmul where `w` is quantised. */
int mlxrs_fast_linear(mlx_array* res, mlx_array x, mlxrs_matrix w, mlx_stream s);
/* The products of x with `n` matrices: one node where these are written alike and x is of 16 bits. */
int mlxrs_fast_linear_many(mlx_vector_array* res, mlx_array x, const mlxrs_matrix* ws, size_t n, mlx_stream s);
/* x [.., 1, in] by the matrix of w [experts, out, in] that indices name: mlx_gather_mm or mlx_gather_qmm, without indices on the
 * left. */
int mlxrs_fast_experts(mlx_array* res, mlx_array x, mlxrs_matrix w, mlx_array indices, mlx_stream s);
/* Rows of w [rows, in], which indices name, in dtype: mlx_take, and mlx_dequantize where `w` is quantised. */
int mlxrs_fast_lookup(mlx_array* res, mlx_array indices, mlxrs_matrix w, mlx_dtype dtype, mlx_stream s);

/* gate * sigmoid(gate) * up, or gelu(gate) * up with the tanh approximation of gelu. */
typedef enum mlxrs_gate {
  MLXRS_GATE_SILU,
  MLXRS_GATE_GELU_TANH,
} mlxrs_gate;
int mlxrs_fast_gated(mlx_array* res, mlxrs_gate kind, mlx_array gate, mlx_array up, mlx_stream s);
/* mlxrs_fast_gated of the products x @ gate.T and x @ up.T: one node under the conditions of mlxrs_fast_linear_many, in which neither
 * product is in memory as a whole. */
int mlxrs_fast_gated_linear(
    mlx_array* res, mlxrs_gate kind, mlx_array x, mlxrs_matrix gate, mlxrs_matrix up, mlx_stream s);
/* cap * tanh(x / cap) */
int mlxrs_fast_soft_cap(mlx_array* res, mlx_array x, float cap, mlx_stream s);

/* Along the last axis: the place of the first of the largest; the n largest, best first, equal ones in the order of their
 * places; and of rows [B, V] the least element that is kept, [B, 1], when the likeliest are kept while those before have
 * less than p, [B, 1], together. NaN is never chosen by our kernels. */
int mlxrs_fast_argmax(mlx_array* res, mlx_array x, mlx_stream s);
int mlxrs_fast_top(mlx_array* ids, mlx_array* values, mlx_array x, int n, mlx_stream s);
int mlxrs_fast_nucleus(mlx_array* res, mlx_array x, mlx_array p, mlx_stream s);
/* log(sum(e^x)) along the last axis, F32. */
int mlxrs_fast_logsumexp(mlx_array* res, mlx_array x, mlx_stream s);
/* The next token of rows of logits [B, V], U32 [B]; ~0 where they are NaN. Only in the CPU form. `keys`, U32 [B, 2],
 * are those of a row's noise; `numbers`, F32 [B, 3]: what logits are multiplied by (0: the largest is taken, without noise), p of the
 * nucleus, and how far below the largest a logit may be, as a negative number; `counts`, I32 [B]: how many of the largest take part. A
 * row without such filters has 1, minus infinity and V. */
int mlxrs_fast_draw(mlx_array* res, mlx_array x, mlx_array keys, mlx_array numbers, mlx_array counts, mlx_stream s);
/* logsumexp(logits) - logits[target] over the last axis; one node for f32 logits. */
int mlxrs_fast_cross_entropy(mlx_array* res, mlx_array logits, mlx_array targets, mlx_stream s);

/* Makes the calling thread's streams usable again after one of them failed: waits until they have skipped what they were given, and
 * forgets the error. What they were to compute must not be used. A stream that failed gives its error at each wait until then. */
int mlxrs_rearm(void);
/* How many streams have a thread: those that were given work by threads that have not ended. */
size_t mlxrs_stream_threads(void);
/* Fails where a setting of the environment is none of those that are allowed. */
int mlxrs_check_settings(void);
/* Has the program wait at its end for what streams of the CPU still compute. To be called before their first use. */
int mlxrs_finish_at_exit(void);

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
