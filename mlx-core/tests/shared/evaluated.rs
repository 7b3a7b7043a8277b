//! Evaluated arrays, so that the failure of another array does not poison them.

use mlx_core::{Array, DType};

pub fn evaluated(array: Array) -> Array {
    mlx_core::eval([&array]).unwrap();
    array
}

pub fn ints(values: &[i32], dtype: DType) -> Array {
    let array = Array::from_slice(values, &[values.len() as i32]).unwrap();
    evaluated(array.astype(dtype).unwrap())
}
