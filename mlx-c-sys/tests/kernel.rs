//! A CPU kernel behind the C interface: run lazily, differentiated, failing, and freed.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call is of one kind: live handles made in the same test"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_c_sys::*;

static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// Multiplies by a factor; a factor of NaN stands for a kernel that fails.
struct Scale(f32);

unsafe extern "C" fn eval(
    ud: *const c_void,
    input: *const mlxrs_view,
    nin: usize,
    out: *const mlxrs_view,
    nout: usize,
    err: *mut c_char,
    errlen: usize,
) -> c_int {
    unsafe {
        let Scale(factor) = *ud.cast();
        if factor.is_nan() {
            let text = c"the factor is %n no number";
            assert!(text.count_bytes() < errlen);
            ptr::copy_nonoverlapping(text.as_ptr(), err, text.count_bytes() + 1);
            return 1;
        }
        assert_eq!((nin, nout), (1, 1));
        let (x, y) = (&*input, &*out);
        assert_eq!(slice::from_raw_parts(x.strides, x.ndim).last(), Some(&1));
        // Through pointers, because input and output may be the same memory.
        for i in 0..x.size {
            *y.data.cast::<f32>().add(i) = *x.data.cast::<f32>().add(i) * factor;
        }
        0
    }
}

/// The gradient of `factor * x` is the same kernel on the cotangent. It fails for a factor of 13, and returns no arrays
/// for a factor of 14.
unsafe extern "C" fn vjp(
    ud: *const c_void,
    res: *mut mlx_vector_array,
    _primals: mlx_vector_array,
    cotangents: mlx_vector_array,
    argnums: *const c_int,
    n_argnums: usize,
    _outputs: mlx_vector_array,
) -> c_int {
    unsafe {
        let Scale(factor) = *ud.cast();
        if factor == 13.0 {
            mlxrs_error_set(c"thirteen has no gradient".as_ptr());
            return 1;
        }
        if factor == 14.0 {
            return 0;
        }
        assert_eq!(slice::from_raw_parts(argnums, n_argnums), [0]);
        let mut cotangent = null_array();
        assert_eq!(mlx_vector_array_get(&mut cotangent, cotangents, 0), 0);
        let (rc, grads) = apply(factor, cotangent);
        mlx_array_free(cotangent);
        *res = grads;
        rc
    }
}

unsafe extern "C" fn drop_scale(ud: *mut c_void) {
    DROPPED.fetch_add(1, Ordering::SeqCst);
    drop(unsafe { Box::from_raw(ud.cast::<Scale>()) });
}

/// A vtable holds C strings, which are not `Sync` by themselves.
struct Shared(mlxrs_kernel_vtable);
unsafe impl Sync for Shared {}

static SCALE: Shared = Shared(mlxrs_kernel_vtable {
    name: c"Scale".as_ptr(),
    eval: Some(eval),
    vjp: Some(vjp),
    vmap: None,
    output_shape: None,
    equivalent: None,
    drop: Some(drop_scale),
    donate_input: 0,
});

fn null_array() -> mlx_array {
    mlx_array {
        ctx: ptr::null_mut(),
    }
}

fn message() -> String {
    let text = unsafe { mlxrs_error_get() };
    assert!(!text.is_null(), "failed without a message");
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

/// The lazy result of the kernel, with the shape of `x`.
fn apply(factor: f32, x: mlx_array) -> (c_int, mlx_vector_array) {
    unsafe {
        let ud = Box::into_raw(Box::new(Scale(factor))).cast();
        let mut res = mlx_vector_array {
            ctx: ptr::null_mut(),
        };
        let (shape, ndim, dtype) = (mlx_array_shape(x), mlx_array_ndim(x), MLX_FLOAT32);
        let stream = mlx_default_cpu_stream_new();
        let rc = mlxrs_kernel_apply(
            &mut res, &SCALE.0, ud, &x, 1, &shape, &ndim, &dtype, 1, stream,
        );
        mlx_stream_free(stream);
        (rc, res)
    }
}

fn scaled(factor: f32, x: mlx_array) -> mlx_array {
    let (rc, outputs) = apply(factor, x);
    assert_eq!(rc, 0, "{}", message());
    let mut y = null_array();
    unsafe {
        assert_eq!(mlx_vector_array_get(&mut y, outputs, 0), 0);
        mlx_vector_array_free(outputs);
    }
    y
}

fn matrix() -> mlx_array {
    let values = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    unsafe { mlx_array_new_data(values.as_ptr().cast(), [2, 3].as_ptr(), 2, MLX_FLOAT32) }
}

fn read(array: mlx_array) -> Vec<f32> {
    unsafe {
        assert_eq!(mlx_array_eval(array), 0, "{}", message());
        slice::from_raw_parts(mlx_array_data_float32(array), mlx_array_size(array)).to_vec()
    }
}

#[test]
fn a_kernel_runs_lazily_on_a_view_and_is_freed() {
    let before = DROPPED.load(Ordering::SeqCst);
    unsafe {
        let (x, mut t) = (matrix(), null_array());
        let stream = mlx_default_cpu_stream_new();
        assert_eq!(mlx_transpose(&mut t, x, stream), 0);
        let y = scaled(2.0, t);
        assert_eq!(mlxrs_kernel_live(), 1);
        let mut lazy = false;
        assert_eq!(mlxrs_array_has_primitive(&mut lazy, y), 0);
        assert!(lazy);
        assert_eq!(read(y), [2.0, 8.0, 4.0, 10.0, 6.0, 12.0]);
        assert_eq!(
            read(x),
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            "an input that is in use was written"
        );
        mlx_synchronize(stream);
        assert_eq!(mlxrs_kernel_live(), 0);
        assert_eq!(DROPPED.load(Ordering::SeqCst), before + 1);
        [x, t, y]
            .into_iter()
            .for_each(|a| assert_eq!(mlx_array_free(a), 0));
        mlx_stream_free(stream);
    }
}

#[test]
fn a_failing_kernel_reports_its_own_words() {
    unsafe {
        mlxrs_error_clear();
        let x = matrix();
        let y = scaled(f32::NAN, x);
        assert_ne!(mlx_array_eval(y), 0);
        assert_eq!(message(), "kernel Scale: eval: the factor is %n no number");
        mlx_array_free(y);
        mlx_array_free(x);
    }
}

unsafe extern "C" fn scale_of_payload(
    res: *mut mlx_vector_array,
    inputs: mlx_vector_array,
    payload: *mut c_void,
) -> c_int {
    unsafe {
        let mut x = null_array();
        assert_eq!(mlx_vector_array_get(&mut x, inputs, 0), 0);
        let (rc, outputs) = apply(*payload.cast(), x);
        mlx_array_free(x);
        *res = outputs;
        rc
    }
}

/// The gradient of `factor * x` for a cotangent of ones.
fn gradient(factor: f32) -> Result<Vec<f32>, String> {
    unsafe {
        mlxrs_error_clear();
        let payload = ptr::from_ref(&factor).cast_mut().cast();
        let f = mlx_closure_new_func_payload(Some(scale_of_payload), payload, None);
        let (x, one) = (matrix(), matrix());
        let primals = mlx_vector_array_new_data(&x, 1);
        let cotangents = mlx_vector_array_new_data(&one, 1);
        let (mut ys, mut grads) = (
            mlx_vector_array {
                ctx: ptr::null_mut(),
            },
            mlx_vector_array {
                ctx: ptr::null_mut(),
            },
        );
        let rc = mlx_vjp(&mut ys, &mut grads, f, primals, cotangents);
        let result = if rc == 0 {
            let mut grad = null_array();
            assert_eq!(mlx_vector_array_get(&mut grad, grads, 0), 0);
            let values = read(grad);
            mlx_array_free(grad);
            Ok(values)
        } else {
            Err(message())
        };
        [primals, cotangents, ys, grads]
            .into_iter()
            .for_each(|v| _ = mlx_vector_array_free(v));
        [x, one].into_iter().for_each(|a| _ = mlx_array_free(a));
        mlx_closure_free(f);
        result
    }
}

#[test]
fn a_kernel_is_differentiated_by_its_own_rule() {
    assert_eq!(gradient(3.0).unwrap(), [3.0, 6.0, 9.0, 12.0, 15.0, 18.0]);
    let failed = gradient(13.0).unwrap_err();
    assert!(failed.contains("thirteen has no gradient"), "{failed}");
    let nothing = gradient(14.0).unwrap_err();
    assert!(
        nothing.contains("expected 1 arrays, the kernel gave 0"),
        "{nothing}"
    );
    assert_eq!(mlxrs_live_after_sync(), 0);
}

fn mlxrs_live_after_sync() -> usize {
    unsafe {
        let stream = mlx_default_cpu_stream_new();
        mlx_synchronize(stream);
        mlx_stream_free(stream);
        mlxrs_kernel_live()
    }
}

#[test]
fn the_payload_is_taken_when_the_kernel_is_refused() {
    let before = DROPPED.load(Ordering::SeqCst);
    unsafe {
        mlxrs_error_clear();
        let ud = Box::into_raw(Box::new(Scale(1.0))).cast();
        let mut res = mlx_vector_array {
            ctx: ptr::null_mut(),
        };
        let stream = mlx_default_cpu_stream_new();
        let none = (ptr::null(), ptr::null(), ptr::null(), ptr::null());
        let rc = mlxrs_kernel_apply(
            &mut res, &SCALE.0, ud, none.0, 0, none.1, none.2, none.3, 0, stream,
        );
        assert_ne!(rc, 0);
        assert!(message().contains("at least one output"), "{}", message());
        mlx_stream_free(stream);
    }
    assert_eq!(DROPPED.load(Ordering::SeqCst), before + 1);
}
