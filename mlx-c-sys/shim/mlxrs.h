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

/* A copy of `data`, in row-major order. For GPUs a small one is in pinned memory of the host, which kernels read without page faults. */
int mlxrs_array_copy_of(mlx_array* res, const void* data, const int* shape, size_t ndim, mlx_dtype dtype);
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

#ifdef __cplusplus
}
#endif

#endif
