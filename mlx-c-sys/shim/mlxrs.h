/* What this project needs of MLX beyond mlx-c, with a C interface: arrays, checks, updates in place, streams. Fused operations are in
 * mlxrs_fast.h and CPU kernels of callers in mlxrs_kernel.h, which this header includes.
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
#include "mlxrs_fast.h"
#include "mlxrs_kernel.h"
#include "mlxrs_recurrent.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the MLX headers this library was compiled with ("0.32.4"). That of the MLX in use: mlx_version(). */
const char* mlxrs_headers_version(void);
/* A digest of the sources of this library. A program loads only a library with the digest that it was built with. */
const char* mlxrs_inputs(void);

/* ---- Errors ---------------------------------------------------------------------------------------------------
 * Each thread has one slot, which keeps the FIRST message since the last clear: later messages of a failing call
 * only repeat it. A message is plain text: "%" has no meaning in it. mlx_set_error_handler() has no effect: nothing
 * is printed, and the process goes on. */
void mlxrs_error_clear(void);
/* NULL when there is none; valid until the next clear on this thread. */
const char* mlxrs_error_get(void);
/* Reports an error from a callback. The first one since the clear wins; NULL is ignored. */
void mlxrs_error_set(const char* msg);

/* ---- Arrays ---------------------------------------------------------------------------------------------------*/

/* An array over memory that is not MLX's, without a copy. MLX only reads it: it is never donated to an operation and
 * never freed by MLX. The function takes `payload` in every case: `dtor(payload)` runs when the last user of the
 * memory is gone (on any thread), or before the return when this fails. `dtor` may be null.
 * Fails when the allocator of the back end does not hand out plain host memory (Metal, CUDA), when `data` is not
 * aligned to the element, and for invalid shapes. The eight bytes before `data` must belong to the same readable
 * mapping. */
int mlxrs_array_from_foreign(
    mlx_array* res,
    const void* data,
    const int* shape,
    size_t ndim,
    mlx_dtype dtype,
    void* payload,
    void (*dtor)(void*));

/* A copy of `data`, in row-major order. For a GPU, a small copy is in pinned host memory, which kernels read without
 * page faults. */
int mlxrs_array_copy_of(mlx_array* res, const void* data, const int* shape, size_t ndim, mlx_dtype dtype);
/* Queues computations that repeat, such as decode steps. On an NVIDIA GPU, one that has the operations, settings, shapes and large inputs of
 * the one before is launched as one CUDA graph. Of its arrays, only the outputs are computed then, and those written in place. Elsewhere it does
 * what mlx_async_eval does. Belongs to the thread that made it. */
typedef struct mlxrs_replay_* mlxrs_replay;
int mlxrs_replay_new(mlxrs_replay* res);
int mlxrs_replay_free(mlxrs_replay replay);
int mlxrs_replay_eval(mlxrs_replay replay, const mlx_vector_array outputs);
/* The number of operations that have to be evaluated for `outputs`. */
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
 * `indices`, checked: each must lie in its axis of `source`. `what` names the operation in errors. One axis holds
 * for all indices. With several axes, each is for one element of the last axis of `indices`. With none, the indices
 * are of the flattened leading axes: all but the last two. As many places as `windows` says for the axis (one entry
 * for each axis, or one for all) must exist from an index on. Negative indices count from the end if `from_end`;
 * else they are out of range.
 * An index that is out of range fails the evaluation. On a GPU it becomes 0, and the kernel reports it: see mlxrs_check_reports. GPUs that
 * do not run kernels of ours report nothing, and take another index that is in range. */
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
/* Fails with the error of a kernel on a GPU stream of this thread, if one has reported an index that is out of range since the last
 * mlxrs_rearm. Call it after each wait for results. */
int mlxrs_check_reports(void);
/* `a`, whose evaluation fails if it holds NaN or an infinity. On the CPU, for F32, F64 and C64. */
int mlxrs_check_finite(mlx_array* res, mlx_array a, const char* what, mlx_stream s);

/* The graphs of `outputs`, traced for all shapes, with reductions that support axes of size 1. */
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

/* For code that lends out the memory of arrays. Call it on the thread that owns them.
 * Tells whether an update in place has written, or is about to write, into a's buffer, and waits for it. A reader
 * must then copy the data that it keeps. */
int mlxrs_array_settle(bool* updated, mlx_array a);
/* Between (true) and (false), which nest, updates that this thread evaluates copy their buffer instead of writing in
 * place, because a reader may hold a pointer into it. */
void mlxrs_reading(bool begin);
/* From now on a's buffer is never donated to an operation or updated in place, through any array, so that other
 * threads may read it. */
int mlxrs_array_pin(mlx_array a);

/* Makes the calling thread's streams usable again after one of them failed: waits until they have skipped their
 * remaining tasks (those of a GPU run), and forgets the error. The results of these tasks must not be used. Until then, a failed stream
 * returns its error at each wait. */
int mlxrs_rearm(void);
/* The number of streams that have a thread: those with tasks from threads that have not ended. */
size_t mlxrs_stream_threads(void);
/* Fails if a setting of the environment is not one of the allowed values. */
int mlxrs_check_settings(void);
/* Makes the program wait at its end for what CPU streams still compute. Must be called before the streams are first
 * used. */
int mlxrs_finish_at_exit(void);

/* Between start and end, each node of this library is timed on the CPU stream that computes it. A process has one
 * profile: a start ends the one before it. The end reports, for each name, the number of nodes and the seconds they
 * took; "" is the time between one node of a stream and the next. A node that is still running at the end is left
 * out. */
void mlxrs_profile_start(void);
void mlxrs_profile_end(void* to, void (*tell)(void* to, const char* name, uint64_t times, double seconds));

#ifdef __cplusplus
}
#endif

#endif
