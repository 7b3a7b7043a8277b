/* The C interface of this library beyond mlx-c: arrays, checks of values, updates in place, streams. It includes
 * mlxrs_fast.h and mlxrs_recurrent.h (fused operations) and mlxrs_kernel.h (CPU kernels of callers).
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

/* The version of the MLX headers that this library was compiled with ("0.32.4"). mlx_version() returns that of the MLX
 * in use. */
const char* mlxrs_headers_version(void);
/* A digest of this library's sources. A program loads only a library with the digest that it was built with. */
const char* mlxrs_inputs(void);

/* ---- Errors ---------------------------------------------------------------------------------------------------
 * Each thread has one slot, which keeps the FIRST message since the last clear, because later messages of a failing
 * call only repeat it. A message is plain text, in which "%" has no meaning. mlx_set_error_handler() has no effect:
 * nothing is printed, and the process goes on. */
void mlxrs_error_clear(void);
/* NULL when there is none; valid until the next clear on this thread. */
const char* mlxrs_error_get(void);
/* Reports an error from a callback. The first one since the clear wins; NULL is ignored. */
void mlxrs_error_set(const char* msg);

/* ---- Arrays ---------------------------------------------------------------------------------------------------*/

/* An array over memory that is not MLX's, without a copy. MLX only reads the memory: it is never donated to an
 * operation and never freed by MLX. The function owns `payload` in every case: `dtor(payload)` runs when the last
 * reference to the memory is gone (on any thread), or before the return if this fails. `dtor` may be null.
 * Fails if the allocator of the back end does not allocate plain host memory (Metal, CUDA), if `data` is not aligned
 * to the element, and for invalid shapes. The eight bytes before `data` must belong to the same readable
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
/* The same for weights. On an NVIDIA GPU the copy is in memory of the GPU, whatever its size, and complete when the call
 * returns. */
int mlxrs_array_of_weights(mlx_array* res, const void* data, const int* shape, size_t ndim, mlx_dtype dtype);
/* Queues computations that repeat, such as decode steps. On an NVIDIA GPU, a computation with the same operations,
 * settings, shapes and large inputs as the one before is launched as one CUDA graph. Then only its outputs, and arrays
 * that are written in place, are evaluated. On other devices it does the same as mlx_async_eval. A replay belongs to the
 * thread that made it. */
typedef struct mlxrs_replay_* mlxrs_replay;
int mlxrs_replay_new(mlxrs_replay* res);
int mlxrs_replay_free(mlxrs_replay replay);
/* `inputs` are the small arrays that the caller made for this computation. */
int mlxrs_replay_eval(mlxrs_replay replay, const mlx_vector_array outputs, const mlx_vector_array inputs);
/* Whether the last computation can be launched again without a graph, because only `inputs` differ between launches. */
bool mlxrs_replay_repeats(mlxrs_replay replay);
/* Launches it with new `inputs`, in the same order. `written` are the present handles of the arrays that it writes in
 * place. The result has its new outputs, or is empty if it cannot be launched with them. */
int mlxrs_replay_relaunch(
    mlx_vector_array* res, mlxrs_replay replay, const mlx_vector_array inputs, const mlx_vector_array written);
/* The operations, settings, shapes and inputs behind lazy arrays of one stream, for tests of computations that repeat. */
typedef struct mlxrs_graph_* mlxrs_graph;
int mlxrs_graph_new(mlxrs_graph* res, const mlx_vector_array outputs, mlx_stream s);
int mlxrs_graph_free(mlxrs_graph graph);
/* Whether both have the same operations, settings and shapes. */
int mlxrs_graph_is_same(bool* res, mlxrs_graph graph, mlxrs_graph other);
/* The number of inputs of `graph` with other memory than in the same graph `before`, other than `inputs` and single
 * numbers that are equal. */
int mlxrs_graph_other_inputs(size_t* res, mlxrs_graph graph, mlxrs_graph before, const mlx_vector_array inputs);
/* Evaluates those arrays that an NVIDIA GPU computes and a CPU stream reads, in the graphs of `outputs`: MLX would read
 * them too early. Needed before an evaluation with several streams. On other devices it does nothing. */
int mlxrs_eval_for_cpu(mlx_vector_array outputs);
/* The number of operations that have to be evaluated for `outputs`. */
int mlxrs_graph_size(size_t* res, mlx_vector_array outputs);
/* True if a transform (grad, vmap, compile) traces this array. Such an array never has data. */
int mlxrs_array_is_tracer(bool* res, mlx_array a);
/* True if the array is the result of an operation that is not evaluated yet, false for a leaf or an evaluated array. */
int mlxrs_array_has_primitive(bool* res, mlx_array a);
/* Address of the first element. Fails if the array is not available. On a GPU back end this may move the data. */
int mlxrs_array_data_ptr(const void** res, mlx_array a);
/* Copies the element of an array of one element, of `size` bytes, to `out`. Returns false, and copies nothing, if the array
 * is not evaluated and waited for, has another size, or is updated in place. */
bool mlxrs_array_read_scalar(void* out, size_t size, mlx_array a);
/* Strides in elements, with their sign, of an evaluated array (mlx_array_strides casts to unsigned). `n` is the rank. */
int mlxrs_array_strides(int64_t* out, size_t n, mlx_array a);
/* The text of an evaluated array, with `precision` digits after the point, or MLX's own choice of digits if it is -1. */
int mlxrs_array_text(mlx_string* res, mlx_array a, int precision);
/* The contractions that einsum makes of `operands`, each as the number of operands that it takes followed by their
 * places in the list, from which they are removed and at whose end the result is put; and a report about the costs. */
int mlxrs_einsum_path(mlx_vector_int* path, mlx_string* report, const char* subscripts, mlx_vector_array operands);
/* Index of a stream, which distinguishes streams. */
int mlxrs_stream_index(int* res, mlx_stream s);

/* ---- Checked values -------------------------------------------------------------------------------------------
 * A copy of `indices`, each of which must be in its axis of `source`. `what` names the operation in errors. A single
 * axis is that of all indices. With several axes, element i of the last axis of `indices` is an index of axis i. With
 * no axes, the indices are those of the flattened leading axes (all but the last two). From an index on, as many
 * places must exist as `windows` says for its axis (one entry for each axis, or one for all). Negative indices count
 * from the end if `from_end`; else they are out of range.
 * An index out of range fails the evaluation. On a GPU it becomes 0, and the kernel reports it (mlxrs_check_reports).
 * GPUs without our kernels report nothing, and use another index that is in range. */
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
/* Fails if a kernel on a GPU stream of this thread has reported an index out of range since the last mlxrs_clear_failures. The
 * error names the operation and the index. Call it after each wait: for the arrays `waited`, or, if that is null, for all
 * work of the stream `s`. It also fails if an array of `waited` depends on another operation that
 * failed: a kernel of a GPU that reads a failed result raises no error. Otherwise the results are
 * good. */
int mlxrs_check_reports(mlx_vector_array waited, mlx_stream s);
/* Returns `a`. The evaluation fails if `a` has NaN or an infinity. On the CPU, for F32, F64 and C64. */
int mlxrs_check_finite(mlx_array* res, mlx_array a, const char* what, mlx_stream s);

/* Rebuilds the graphs of `outputs`, which were traced for all shapes, with operations that look at shapes only when
 * they are evaluated (see shapeless.cpp). */
int mlxrs_for_all_shapes(mlx_vector_array* res, mlx_vector_array outputs);

/* ---- Updating in place ----------------------------------------------------------------------------------------
 * `lazy` is the unevaluated result of an update of `source` (slice_update, slice_update_dynamic, scatter, ...), of
 * the same shape and dtype. The result has the same values, but the update is written into source's buffer even if
 * queued work still reads that buffer. MLX would copy the whole buffer.
 *
 * The caller promises that no work that is queued after this update reads `source` or another view of its buffer.
 * After the call only the result may be used.
 *
 * If `lazy` is evaluated already, or `source` is not among its inputs (a slice_update that covers everything returns
 * the update itself), `lazy` is returned unchanged. A source that is not row-contiguous, or does not begin at the
 * start of a buffer that MLX owns, is copied, as MLX would do. */
int mlxrs_update_in_place(mlx_array* res, mlx_array lazy, mlx_array source);

/* The bytes of freed memory of the default GPU that the driver keeps for this process (CUDA). The driver's number of free
 * bytes is without them. 0 for other devices. */
int mlxrs_memory_kept(size_t* res);

/* For code that gives out pointers to the memory of arrays. Call it on the thread that owns the arrays.
 * `updated` becomes true if an update in place has written, or is queued to write, into a's buffer. The function waits
 * for such updates. A reader must then copy the data that it keeps. */
int mlxrs_wait_for_updates(bool* updated, mlx_array a);
/* Between mlxrs_count_reader(true) and mlxrs_count_reader(false), which nest, updates that this thread evaluates copy
 * their buffer and do not write in place, because a reader may hold a pointer to it. */
void mlxrs_count_reader(bool begin);
/* After this call a's buffer is never donated to an operation or updated in place, through any array, so that other
 * threads may read it. */
int mlxrs_array_pin(mlx_array a);

/* Makes the calling thread's streams usable again after one of them failed. Waits until they have ended their remaining
 * tasks, and clears the error. Before this call, a failed stream returns its error at each wait.
 * `reason` is the text of the error. If `all`, all results that this thread has not waited for are lost, otherwise those
 * of the operations that failed and of the operations that depend on them. */
int mlxrs_clear_failures(const char* reason, bool all);
/* Whether `a` is, or will be computed from, the result of an operation that failed. `reason` is the error of that
 * operation, valid until the next call on this thread, or null if it is not known. On systems other than Linux it is not
 * known which arrays a failure has reached, and `lost` is true for all. */
int mlxrs_array_lost(bool* lost, const char** reason, mlx_array a);
/* The number of CPU streams that have a worker thread. It ends with the thread that owns the stream. */
size_t mlxrs_stream_threads(void);
/* Fails if a setting of the environment is not one of the allowed values. */
int mlxrs_check_settings(void);
/* Makes the program wait at its exit for the tasks of CPU streams, and prepares the calling thread for its end. Must be
 * called on each thread that has streams, after the first of them is made and before it is used. */
int mlxrs_finish_at_exit(void);

/* Between start and end, the time of each node of this library is measured on the CPU stream that computes it. A process
 * has one profile, and a start ends the one before. The end calls `report` for each name with the number of nodes and
 * their seconds; the name "" is the time between two nodes of a stream. Nodes that still run at the end are not
 * counted. */
void mlxrs_profile_start(void);
void mlxrs_profile_end(void* to, void (*report)(void* to, const char* name, uint64_t times, double seconds));

#ifdef __cplusplus
}
#endif

#endif
