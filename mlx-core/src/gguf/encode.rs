//! Elements as the bytes of a tensor's type.

use half::f16;
use rayon::prelude::*;

use super::TensorType;
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};

/// The elements that are converted to F32 at a time, about.
const PART: usize = 1 << 24;

/// The largest finite F16.
const MOST_F16: f32 = 65_504.0;

/// Calls `put` with the bytes of `array` as `kind`, in order and in parts.
///
/// Q4_0 and Q8_0 are rounded as llama.cpp's reference does: Q8_0 to the nearest, halves away from
/// zero; Q4_0 by the element with the largest magnitude, which becomes -8.
///
/// # Errors
/// `put` fails, the evaluation fails, a finite element is too large for F16, or a block has an
/// element that is not finite.
pub(super) fn encode(
    array: &Array,
    kind: TensorType,
    mut put: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    if kind.dtype() == Some(array.dtype()) {
        return array.with_bytes(&mut put)?;
    }
    // Parts of a lazy array would each compute all of it.
    array.eval()?;
    let row = array.shape().last().map_or(1, |&size| size as usize);
    let rows = array.size() / row.max(1);
    let matrix = array.reshape(&[rows as i32, row as i32])?;
    let part = (PART / row.max(1)).max(1);
    for start in (0..rows).step_by(part) {
        let stop = (start + part).min(rows);
        let values = matrix.slice_axis(0, start as i32, stop as i32)?;
        match kind.dtype() {
            Some(dtype) => {
                let cast = values.astype(dtype)?;
                if dtype == DType::F16 {
                    check_f16(&values.astype(DType::F32)?)?;
                }
                cast.with_bytes(&mut put)??;
            }
            None => {
                let values = values.astype(DType::F32)?;
                values.with_slice(|values: &[f32]| put(&blocks(kind, values)?))??;
            }
        }
    }
    Ok(())
}

fn check_f16(values: &Array) -> Result<()> {
    let large = values.with_slice(|values: &[f32]| {
        let mut values = values.iter().copied();
        values.find(|value| value.is_finite() && value.abs() > MOST_F16)
    })?;
    match large {
        None => Ok(()),
        Some(value) => {
            let message = format!("{value} is beyond the range of F16; use BF16 or F32");
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

/// The blocks of `values`, a whole number of them.
fn blocks(kind: TensorType, values: &[f32]) -> Result<Vec<u8>> {
    let mut bytes = vec![0; values.len() / kind.block() * kind.block_bytes()];
    let pairs = bytes
        .par_chunks_exact_mut(kind.block_bytes())
        .zip(values.par_chunks_exact(kind.block()));
    let encoded: Result<(), f32> = pairs
        .map(|(bytes, values)| block(kind, values, bytes))
        .collect();
    encoded.map_err(|value| {
        let message = format!("a block of {kind} has no scale for an element of {value}");
        Error::new(ErrorKind::Unsupported, message)
    })?;
    Ok(bytes)
}

/// Fills a block. The error is an element that is too large or not finite.
fn block(kind: TensorType, values: &[f32], bytes: &mut [u8]) -> Result<(), f32> {
    // The first of equal magnitudes.
    let mut largest = 0f32;
    for &value in values {
        if !value.is_finite() {
            return Err(value);
        }
        if value.abs() > largest.abs() {
            largest = value;
        }
    }
    let scale = match kind {
        TensorType::Q4_0 => largest / -8.0,
        _ => largest.abs() / 127.0,
    };
    let stored = f16::from_f32(scale);
    if !stored.is_finite() {
        return Err(largest);
    }
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let (head, codes) = bytes.split_at_mut(2);
    head.copy_from_slice(&stored.to_le_bytes());
    match kind {
        TensorType::Q4_0 => {
            let code = |value: f32| ((value * inverse + 8.5) as u8).min(15);
            let (low, high) = values.split_at(values.len() / 2);
            for ((byte, &low), &high) in codes.iter_mut().zip(low).zip(high) {
                *byte = code(low) | code(high) << 4;
            }
        }
        _ => {
            for (byte, value) in codes.iter_mut().zip(values) {
                *byte = (value * inverse).round() as i8 as u8;
            }
        }
    }
    Ok(())
}
