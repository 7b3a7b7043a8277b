//! The bindings, the linked library and the loaded MLX belong together, and the shim does what its header promises.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call is of one kind: live handles made in the same test"
)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::size_of;
use std::ptr;
use std::sync::Arc;

use mlx_c_sys::*;

fn null_array() -> mlx_array {
    mlx_array {
        ctx: ptr::null_mut(),
    }
}

fn null_vector() -> mlx_vector_array {
    mlx_vector_array {
        ctx: ptr::null_mut(),
    }
}

/// The message of a call that must fail.
fn message(rc: i32) -> String {
    assert_ne!(rc, 0, "the call was to fail");
    let text = unsafe { mlxrs_error_get() };
    assert!(!text.is_null(), "failed without a message");
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

fn ok(rc: i32) {
    assert!(rc == 0, "{}", message(rc));
}

fn cpu() -> mlx_stream {
    unsafe { mlx_default_cpu_stream_new() }
}

fn vector(values: &[f32]) -> mlx_array {
    let shape = [values.len() as i32];
    unsafe { mlx_array_new_data(values.as_ptr().cast(), shape.as_ptr(), 1, MLX_FLOAT32) }
}

fn read(array: mlx_array) -> Vec<f32> {
    unsafe {
        ok(mlx_array_eval(array));
        let data = mlx_array_data_float32(array);
        std::slice::from_raw_parts(data, mlx_array_size(array)).to_vec()
    }
}

fn free<const N: usize>(arrays: [mlx_array; N]) {
    for array in arrays {
        ok(unsafe { mlx_array_free(array) });
    }
}

/// A lazy `cache` with `update` at `start`.
fn slice_update(
    cache: mlx_array,
    update: mlx_array,
    start: i32,
    stop: i32,
    s: mlx_stream,
) -> mlx_array {
    let mut res = null_array();
    let (start, stop, step) = ([start], [stop], [1]);
    let (start, stop, step) = (start.as_ptr(), stop.as_ptr(), step.as_ptr());
    ok(unsafe { mlx_slice_update(&mut res, cache, update, start, 1, stop, 1, step, 1, s) });
    res
}

#[test]
fn headers_and_library_are_of_one_release() {
    let headers = unsafe { CStr::from_ptr(mlxrs_headers_version()) };
    assert_eq!(headers.to_str().unwrap(), MLX_VERSION);
    let mut loaded = mlx_string {
        ctx: ptr::null_mut(),
    };
    unsafe {
        ok(mlx_version(&mut loaded));
        assert_eq!(
            CStr::from_ptr(mlx_string_data(loaded)).to_str().unwrap(),
            MLX_VERSION
        );
        mlx_string_free(loaded);
    }
}

#[test]
fn handles_are_one_pointer() {
    assert_eq!(size_of::<mlx_array>(), size_of::<usize>());
    assert_eq!(size_of::<mlx_vector_array>(), size_of::<usize>());
    assert_eq!(size_of::<mlx_stream>(), size_of::<usize>());
    assert_eq!(size_of::<mlx_closure>(), size_of::<usize>());
}

#[test]
fn freeing_a_null_handle_is_nothing() {
    free([null_array()]);
    ok(unsafe { mlx_vector_array_free(null_vector()) });
}

#[test]
fn an_error_message_is_text_and_not_a_format() {
    let path = CString::new("/no/such/%s%n%d").unwrap();
    let mut arrays = mlx_map_string_to_array {
        ctx: ptr::null_mut(),
    };
    let mut metadata = mlx_map_string_to_string {
        ctx: ptr::null_mut(),
    };
    unsafe {
        mlxrs_error_clear();
        let stream = cpu();
        let rc = mlx_load_safetensors(&mut arrays, &mut metadata, path.as_ptr(), stream);
        let text = message(rc);
        assert!(text.contains("/no/such/%s%n%d"), "{text}");
        mlx_stream_free(stream);
    }
}

#[test]
fn the_first_error_since_the_clear_is_kept() {
    unsafe {
        mlxrs_error_clear();
        assert!(mlxrs_error_get().is_null());
        mlxrs_error_set(ptr::null());
        assert!(mlxrs_error_get().is_null());
        mlxrs_error_set(c"first %n".as_ptr());
        mlxrs_error_set(c"second".as_ptr());
        assert_eq!(message(1), "first %n");
        let other = std::thread::spawn(|| mlxrs_error_get().is_null());
        assert!(
            other.join().unwrap(),
            "another thread sees this thread's error"
        );
        mlxrs_error_clear();
        assert!(mlxrs_error_get().is_null());
    }
}

#[test]
fn a_handler_is_accepted_and_never_called() {
    unsafe extern "C" fn handler(_: *const c_char, _: *mut c_void) {
        std::process::abort();
    }
    unsafe {
        mlx_set_error_handler(Some(handler), ptr::null_mut(), None);
        mlxrs_error_clear();
        let (mut res, stream) = (null_array(), cpu());
        let text = message(mlx_add(&mut res, null_array(), null_array(), stream));
        assert!(text.contains("non-empty mlx_array"), "{text}");
        mlx_stream_free(stream);
    }
}

/// Lends `values` to MLX: status and array.
fn foreign(values: &Arc<Vec<f32>>, shift: usize, shape: &[i32]) -> (i32, mlx_array) {
    unsafe extern "C" fn give_back(payload: *mut c_void) {
        drop(unsafe { Box::from_raw(payload.cast::<Arc<Vec<f32>>>()) });
    }
    let payload = Box::into_raw(Box::new(values.clone())).cast();
    let data = values.as_ptr().cast::<u8>().wrapping_add(shift).cast();
    let mut res = null_array();
    let (dims, ndim) = (shape.as_ptr(), shape.len());
    let dtor = Some(give_back as unsafe extern "C" fn(*mut c_void));
    let rc =
        unsafe { mlxrs_array_from_foreign(&mut res, data, dims, ndim, MLX_FLOAT32, payload, dtor) };
    (rc, res)
}

#[test]
fn foreign_memory_is_read_in_place_never_written_and_given_back() {
    let values = Arc::new(vec![1.0f32, 2.0, 3.0, 4.0]);
    unsafe {
        let (rc, array) = foreign(&values, 0, &[2, 2]);
        ok(rc);
        let mut at = ptr::null();
        ok(mlxrs_array_data_ptr(&mut at, array));
        assert_eq!(at.cast(), values.as_ptr());

        // The last handle is freed before the evaluation: MLX would now donate and overwrite a buffer of its own.
        let (mut sum, stream) = (null_array(), cpu());
        ok(mlx_add(&mut sum, array, array, stream));
        free([array]);
        assert_eq!(read(sum), [2.0, 4.0, 6.0, 8.0]);
        free([sum]);
        mlx_synchronize(stream);
        assert_eq!(
            Arc::strong_count(&values),
            1,
            "the memory was not given back"
        );

        // Even an update that is forced to be in place does not write to it.
        let (rc, array) = foreign(&values, 0, &[4]);
        ok(rc);
        let update = vector(&[9.0]);
        let next = slice_update(array, update, 0, 1, stream);
        let mut forced = null_array();
        ok(mlxrs_update_in_place(&mut forced, next, array));
        assert_eq!(read(forced), [9.0, 2.0, 3.0, 4.0]);
        assert_eq!(*values, [1.0, 2.0, 3.0, 4.0]);
        free([array, update, next, forced]);
        mlx_stream_free(stream);
    }
}

#[test]
fn foreign_memory_that_cannot_be_used_is_refused_and_given_back() {
    let values = Arc::new(vec![1.0f32; 4]);
    let cases: [(usize, &[i32], &str); 3] = [
        (1, &[1], "not aligned"),
        (0, &[2, -1], "axis 1 of a shape is negative: -1"),
        (
            0,
            &[i32::MAX, i32::MAX, i32::MAX],
            "more elements than memory",
        ),
    ];
    for (shift, shape, expected) in cases {
        unsafe { mlxrs_error_clear() };
        let text = message(foreign(&values, shift, shape).0);
        assert!(text.contains(expected), "{text}");
        assert_eq!(
            Arc::strong_count(&values),
            1,
            "a failing call keeps the memory"
        );
    }
    let (rc, empty) = foreign(&values, 0, &[0, 3]);
    ok(rc);
    assert_eq!(read(empty), []);
    free([empty]);
}

/// Eight pipelined steps of "update the cache, sum it". Returns whether the buffer stayed the same, the sums and the
/// cache.
fn pipeline(forced: bool) -> (bool, Vec<f32>, Vec<f32>) {
    let stream = cpu();
    let mut cache = vector(&vec![0.0; 1 << 16]);
    let (mut before, mut after) = (ptr::null(), ptr::null());
    ok(unsafe { mlxrs_array_data_ptr(&mut before, cache) });
    let mut sums = Vec::new();
    for i in 0..8 {
        let update = vector(&[1.0 + i as f32]);
        let mut next = slice_update(cache, update, i, i + 1, stream);
        let mut sum = null_array();
        unsafe {
            if forced {
                let mut in_place = null_array();
                ok(mlxrs_update_in_place(&mut in_place, next, cache));
                free([next]);
                next = in_place;
            }
            ok(mlx_sum(&mut sum, next, false, stream));
            // As a decoding loop does: queue the step, read it later.
            let both = mlx_vector_array_new_data([next, sum].as_ptr(), 2);
            ok(mlx_async_eval(both));
            ok(mlx_vector_array_free(both));
        }
        free([update, cache]);
        cache = next;
        sums.push(sum);
    }
    let read_sums = sums.iter().map(|sum| read(*sum)[0]).collect();
    let values = read(cache);
    ok(unsafe { mlxrs_array_data_ptr(&mut after, cache) });
    sums.into_iter().for_each(|sum| free([sum]));
    free([cache]);
    ok(unsafe { mlx_stream_free(stream) });
    (before == after, read_sums, values)
}

#[test]
fn a_pipelined_update_stays_in_place() {
    let (stayed, sums, values) = pipeline(true);
    assert!(stayed, "the buffer moved");
    assert_eq!(sums, [1.0, 3.0, 6.0, 10.0, 15.0, 21.0, 28.0, 36.0]);
    assert_eq!(values[..9], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.0]);
    let (_, plain_sums, plain_values) = pipeline(false);
    assert_eq!((sums, values), (plain_sums, plain_values));
}

#[test]
fn an_update_that_reads_its_own_buffer_copies() {
    unsafe {
        let stream = cpu();
        let cache = vector(&[1.0, 2.0, 3.0, 4.0]);
        let (mut tail, mut forced) = (null_array(), null_array());
        let (start, stop, step) = ([2], [4], [1]);
        ok(mlx_slice(
            &mut tail,
            cache,
            start.as_ptr(),
            1,
            stop.as_ptr(),
            1,
            step.as_ptr(),
            1,
            stream,
        ));
        let next = slice_update(cache, tail, 1, 3, stream);
        ok(mlxrs_update_in_place(&mut forced, next, cache));
        assert_eq!(read(forced), [1.0, 3.0, 4.0, 4.0]);
        free([cache, tail, next, forced]);
        mlx_stream_free(stream);
    }
}

#[test]
fn an_update_of_everything_is_returned_as_it_is() {
    unsafe {
        let stream = cpu();
        let (cache, update) = (vector(&[0.0; 2]), vector(&[5.0, 6.0]));
        let next = slice_update(cache, update, 0, 2, stream);
        let mut in_place = null_array();
        ok(mlxrs_update_in_place(&mut in_place, next, cache));
        assert_eq!(read(in_place), [5.0, 6.0]);
        assert_eq!(read(cache), [0.0, 0.0], "the cache was written");
        free([cache, update, next, in_place]);
        mlx_stream_free(stream);
    }
}

#[test]
fn gather_qmm_is_callable() {
    let weights: Vec<f32> = (0..2 * 32 * 64).map(|i| ((i % 7) as f32) - 3.0).collect();
    let x: Vec<f32> = (0..64).map(|i| (i % 3) as f32).collect();
    let group = mlx_optional_int {
        value: 32,
        has_value: true,
    };
    let bits = mlx_optional_int {
        value: 8,
        has_value: true,
    };
    let mode = c"affine".as_ptr();
    unsafe {
        let stream = cpu();
        let w = mlx_array_new_data(
            weights.as_ptr().cast(),
            [2, 32, 64].as_ptr(),
            3,
            MLX_FLOAT32,
        );
        let x = mlx_array_new_data(x.as_ptr().cast(), [1, 1, 64].as_ptr(), 3, MLX_FLOAT32);
        let expert = mlx_array_new_data([1u32].as_ptr().cast(), [1].as_ptr(), 1, MLX_UINT32);
        let mut packed = null_vector();
        ok(mlx_quantize(
            &mut packed,
            w,
            group,
            bits,
            mode,
            null_array(),
            stream,
        ));
        let mut parts = [null_array(); 3];
        for (i, part) in parts.iter_mut().enumerate() {
            ok(mlx_vector_array_get(part, packed, i));
        }
        let ([pw, scales, biases], none, mut y) = (parts, null_array(), null_array());
        ok(mlx_gather_qmm(
            &mut y, x, pw, scales, biases, none, expert, true, group, bits, mode, false, stream,
        ));
        let got = read(y);
        assert_eq!(got.len(), 32);
        for (row, got) in got.iter().enumerate() {
            let want: f32 = (0..64)
                .map(|i| weights[(32 + row) * 64 + i] * (i % 3) as f32)
                .sum();
            assert!(
                (got - want).abs() < 0.5,
                "row {row}: {got}, expected about {want}"
            );
        }
        free([w, x, expert, pw, scales, biases, y]);
        mlx_vector_array_free(packed);
        mlx_stream_free(stream);
    }
}

/// The exiting thread has streams that it made without a call of `mlxrs_finish_at_exit`, and another thread made the call.
/// Thread-local objects are destroyed by the time of the wait.
#[test]
fn an_exit_uses_no_object_of_its_thread() {
    const CHILD: &str = "MLX_C_SYS_TEST_EXITS";
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "an_exit_uses_no_object_of_its_thread"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        return;
    }
    let computes = || unsafe {
        let stream = cpu();
        ok(mlxrs_finish_at_exit());
        let mut y = null_array();
        ok(mlx_arange(&mut y, 0.0, 4.0, 1.0, MLX_FLOAT32, stream));
        assert_eq!(read(y), [0.0, 1.0, 2.0, 3.0]);
        free([y]);
        mlx_stream_free(stream);
    };
    std::thread::spawn(computes).join().unwrap();
    for _ in 0..8 {
        unsafe {
            let device = mlx_device_new_type(MLX_CPU, 0);
            mlx_stream_free(mlx_stream_new_device(device));
            mlx_device_free(device);
        }
    }
    std::process::exit(0);
}
