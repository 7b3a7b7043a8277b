//! Calls of elementwise operations.

use crate::case::{Op, Results, rows};

macro_rules! unary {
    ($($name:ident)*) => { vec![$( (stringify!($name), (|c| c.x(0).$name().map(Results::list)) as Op) ),*] };
}

/// The second operand is an array, an integer or a float, depending on the case.
macro_rules! binary {
    ($($name:ident)*) => { vec![$( (stringify!($name), (|c| {
        let x = c.x(0);
        match c.inputs.get(1) {
            Some(y) => x.$name(y),
            None if c.is_int(0) => x.$name(c.int(0)),
            None => x.$name(c.float(0)),
        }.map(Results::list)
    }) as Op) ),*] };
}

pub fn rows() -> Vec<(&'static str, Op)> {
    [unary(), binary(), others()].concat()
}

pub fn unary() -> Vec<(&'static str, Op)> {
    unary! {
        abs negative positive exp expm1 log log1p log2 log10 sqrt rsqrt square reciprocal sin cos tan arcsin arccos
        arctan sinh cosh tanh arcsinh arccosh arctanh sigmoid erf erfinv floor ceil trunc sign isnan isinf isfinite
        isneginf isposinf logical_not bitwise_invert degrees radians conjugate real imag stop_gradient
    }
}

pub fn binary() -> Vec<(&'static str, Op)> {
    binary! {
        add subtract multiply divide power maximum minimum logaddexp arctan2 floor_divide remainder divmod
        bitwise_and bitwise_or bitwise_xor left_shift right_shift equal not_equal less less_equal greater
        greater_equal logical_and logical_or logical_xor
    }
}

fn others() -> Vec<(&'static str, Op)> {
    rows! {
        "round_with" => |c| c.x(0).round_with(c.int(0));
        "nan_to_num_with" => |c| {
            let or_none = |i| (!c.is_null(i)).then(|| c.float(i) as f32);
            c.x(0).nan_to_num_with(c.float(0) as f32, or_none(1), or_none(2))
        };
        "clip" => |c| c.x(0).clip(c.float(0), c.float(1));
        "clip_arrays" => |c| c.x(0).clip(c.x(1), c.x(2));
        "select" => |c| c.x(0).select(c.x(1), c.x(2));
        "select_number" => |c| c.x(0).select(c.x(1), c.float(0));
        "isclose_with" => |c| c.x(0).isclose_with(c.x(1), c.float(0), c.float(1), c.bool(2));
        "allclose_with" => |c| c.x(0).allclose_with(c.x(1), c.float(0), c.float(1), c.bool(2));
        "array_equal_with" => |c| c.x(0).array_equal_with(c.x(1), c.bool(0));
    }
}
