//! Arguments that do not fit are an error, never a crash. MLX divides by, reads by and loops over some of them without
//! checks.

mod arrays;
mod products;

use mlx_core::{Array, DType, Result, ones};

fn floats(shape: &[i32]) -> Array {
    ones(shape, DType::F32).unwrap()
}

fn ints(values: &[i32]) -> Array {
    Array::from_slice(values, &[values.len() as i32]).unwrap()
}

/// Every call must be refused when it is made, or at the latest when its result is computed.
fn refuse(calls: Vec<(&str, Result<Array>)>) {
    let accepted: Vec<_> = calls
        .into_iter()
        .filter_map(|(name, result)| {
            result
                .and_then(|array| array.astype(DType::F32)?.to_vec::<f32>())
                .ok()
                .map(|_| name)
        })
        .collect();
    assert!(accepted.is_empty(), "accepted: {accepted:?}");
}

fn first(arrays: Result<Vec<Array>>) -> Result<Array> {
    arrays.map(|mut arrays| arrays.remove(0))
}
