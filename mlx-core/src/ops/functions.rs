//! The methods of [`Array`] that Python has as functions, `mx.softmax(x, -1)`, under the same names.
//!
//! ```
//! use mlx_core::{array, maximum, softmax};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = array![0.0f32, 0.0, -1.0];
//! assert_eq!(maximum(&x, -0.5)?.to_vec::<f32>()?, [0.0, 0.0, -0.5]);
//! assert_eq!(maximum(-0.5, &x)?.to_vec::<f32>()?, [0.0, 0.0, -0.5]);
//! assert_eq!(softmax(&x, -1)?.shape(), [3]);
//! # Ok(())
//! # }
//! ```

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::into_shape::IntoShape;
use crate::ops::{Axes, Axis, Limit, Operand, PadWidths, Sections};

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

macro_rules! operands {
    ($($name:ident(x, y);)*) => { $(
        #[doc = concat!("[`Array::", stringify!($name), "`] as a function.")]
        ///
        /// A number on either side takes the dtype of the array; two numbers are F32 or I32.
        ///
        /// # Errors
        /// Those of the method, or the dtype cannot hold the number on the left.
        pub fn $name(x: impl Operand, y: impl Operand) -> Result<Array> {
            let like = x.dtype().or(y.dtype()).unwrap_or(DType::Bool);
            x.to_array(like)?.$name(y)
        }
    )* };
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
operands! {
    add(x, y);
    allclose(x, y);
    arctan2(x, y);
    bitwise_and(x, y);
    bitwise_or(x, y);
    bitwise_xor(x, y);
    divide(x, y);
    equal(x, y);
    floor_divide(x, y);
    greater(x, y);
    greater_equal(x, y);
    isclose(x, y);
    left_shift(x, y);
    less(x, y);
    less_equal(x, y);
    logaddexp(x, y);
    logical_and(x, y);
    logical_or(x, y);
    logical_xor(x, y);
    maximum(x, y);
    minimum(x, y);
    multiply(x, y);
    not_equal(x, y);
    power(x, y);
    remainder(x, y);
    right_shift(x, y);
    subtract(x, y);
}

// Of several arrays.
functions! {
    addmm(a: &Array, b: &Array);
    array_equal(y: &Array);
    clip(low: impl Limit, high: impl Limit);
    divmod(y: impl Operand) -> (Array, Array);
    inner(y: &Array);
    kron(y: &Array);
    matmul(y: &Array);
    outer(y: &Array);
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
    split(pieces: impl Sections, axis: i32) -> Vec<Array>;
    squeeze(axes: impl Axes);
    swapaxes(a: i32, b: i32);
    take(indices: impl Operand, axis: impl Axis);
    take_along_axis(indices: &Array, axis: impl Axis);
    tile(times: impl IntoShape);
    to_fp8();
    transpose(axes: impl Axes);
    unflatten(axis: i32, shape: impl IntoShape);
    unique();
    unstack(axis: i32) -> Vec<Array>;
    view(dtype: DType);
}
