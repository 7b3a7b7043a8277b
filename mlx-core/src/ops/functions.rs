//! The methods of [`Array`] that Python has as functions, `mx.softmax(x, -1)`, under the same names.
//!
//! ```
//! use mlx_core::{array, maximum, softmax};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = array![0.0f32, 0.0, -1.0];
//! assert_eq!(maximum(&x, -0.5)?.to_vec::<f32>()?, [0.0, 0.0, -0.5]);
//! assert_eq!(softmax(&x, -1)?.shape(), [3]);
//! # Ok(())
//! # }
//! ```

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::into_shape::IntoShape;
use crate::ops::{Axes, Axis, Operand, PadWidths};

macro_rules! functions {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => { $(
        #[doc = concat!("[`Array::", stringify!($name), "`] as a function.")]
        ///
        /// # Errors
        /// Those of the method.
        pub fn $name(x: &Array, $($arg: $ty),*) -> functions!(@out $($out)?) {
            x.$name($($arg),*)
        }
    )* };
    (@out) => { Result<Array> };
    (@out $out:ty) => { Result<$out> };
}

// Of each element.
functions! {
    abs();
    arccos();
    arccosh();
    arcsin();
    arcsinh();
    arctan();
    arctanh();
    bitwise_invert();
    ceil();
    conjugate();
    cos();
    cosh();
    degrees();
    erf();
    erfinv();
    exp();
    expm1();
    floor();
    gelu();
    imag();
    isfinite();
    isinf();
    isnan();
    isneginf();
    isposinf();
    log();
    log10();
    log1p();
    log2();
    logical_not();
    nan_to_num();
    negative();
    positive();
    radians();
    real();
    reciprocal();
    relu();
    round();
    rsqrt();
    sigmoid();
    sign();
    silu();
    sin();
    sinh();
    sqrt();
    square();
    stop_gradient();
    tan();
    tanh();
    trunc();
}

// Of two arrays, or of an array and a number.
functions! {
    add(y: impl Operand);
    addmm(a: &Array, b: &Array);
    allclose(y: impl Operand);
    arctan2(y: impl Operand);
    array_equal(y: &Array);
    bitwise_and(y: impl Operand);
    bitwise_or(y: impl Operand);
    bitwise_xor(y: impl Operand);
    clip(low: impl Operand, high: impl Operand);
    divide(y: impl Operand);
    divmod(y: impl Operand) -> (Array, Array);
    equal(y: impl Operand);
    floor_divide(y: impl Operand);
    greater(y: impl Operand);
    greater_equal(y: impl Operand);
    inner(y: &Array);
    isclose(y: impl Operand);
    kron(y: &Array);
    left_shift(y: impl Operand);
    less(y: impl Operand);
    less_equal(y: impl Operand);
    logaddexp(y: impl Operand);
    logical_and(y: impl Operand);
    logical_or(y: impl Operand);
    logical_xor(y: impl Operand);
    matmul(y: &Array);
    maximum(y: impl Operand);
    minimum(y: impl Operand);
    multiply(y: impl Operand);
    not_equal(y: impl Operand);
    outer(y: &Array);
    power(y: impl Operand);
    remainder(y: impl Operand);
    right_shift(y: impl Operand);
    subtract(y: impl Operand);
    tensordot(y: &Array);
    vecdot(y: &Array);
}

// Reductions, scans and sorts.
functions! {
    all(axes: impl Axes, keepdims: bool);
    any(axes: impl Axes, keepdims: bool);
    argmax(axis: impl Axis, keepdims: bool);
    argmin(axis: impl Axis, keepdims: bool);
    argpartition(kth: i32, axis: impl Axis);
    argsort(axis: impl Axis);
    count_nonzero(axes: impl Axes, keepdims: bool);
    cummax(axis: impl Axis);
    cummin(axis: impl Axis);
    cumprod(axis: impl Axis);
    cumsum(axis: impl Axis);
    diff();
    logcumsumexp(axis: impl Axis);
    logsumexp(axes: impl Axes, keepdims: bool);
    max(axes: impl Axes, keepdims: bool);
    mean(axes: impl Axes, keepdims: bool);
    median(axes: impl Axes, keepdims: bool);
    min(axes: impl Axes, keepdims: bool);
    minmax(axes: impl Axes, keepdims: bool) -> (Array, Array);
    partition(kth: i32, axis: impl Axis);
    prod(axes: impl Axes, keepdims: bool);
    softmax(axes: impl Axes);
    sort(axis: impl Axis);
    std(axes: impl Axes, keepdims: bool);
    sum(axes: impl Axes, keepdims: bool);
    topk(k: i32, axis: impl Axis);
    trace();
    var(axes: impl Axes, keepdims: bool);
}

// Shapes and indices.
functions! {
    as_strided(shape: impl IntoShape, strides: &[i64]);
    astype(dtype: DType);
    atleast_1d();
    atleast_2d();
    atleast_3d();
    broadcast_to(shape: impl IntoShape);
    contiguous();
    diagonal();
    expand_dims(axes: impl Axes);
    flatten();
    flip(axes: impl Axes);
    from_fp8(dtype: DType);
    hadamard_transform();
    matrix_transpose();
    moveaxis(from: i32, to: i32);
    pad(widths: impl PadWidths, value: impl Operand);
    put_along_axis(indices: &Array, values: &Array, axis: i32);
    repeat(times: i32, axis: impl Axis);
    reshape(shape: impl IntoShape);
    roll(shift: impl Axes, axes: impl Axes);
    searchsorted(values: &Array);
    split(parts: i32, axis: i32) -> Vec<Array>;
    squeeze(axes: impl Axes);
    swapaxes(a: i32, b: i32);
    take(indices: &Array, axis: impl Axis);
    take_along_axis(indices: &Array, axis: impl Axis);
    tile(times: &[i32]);
    to_fp8();
    transpose(axes: &[i32]);
    unflatten(axis: i32, shape: impl IntoShape);
    unique();
    unstack(axis: i32) -> Vec<Array>;
    view(dtype: DType);
}
