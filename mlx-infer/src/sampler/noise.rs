//! Gumbel noise from (seed, position): the same whoever shares the batch.

use mlx_core::ops::{stack, zeros};
use mlx_core::random::{self, Key};
use mlx_core::{Array, DType};

use super::Row;
use crate::error::Result;

/// Noise for each row's next token: F32 `[B, V]`; zeros for greedy rows.
pub(super) fn gumbel(rows: &[Row<'_>], pending: bool, v: i32) -> Result<Array> {
    let noise = |row: &Row<'_>| match row.params.is_greedy() {
        true => Ok(zeros(&[v], DType::F32)?),
        false => of_position(row.seed, row.history.ids().len() + usize::from(pending), v),
    };
    match rows {
        [row] => Ok(noise(row)?.expand_dims(0)?),
        rows => {
            let rows = rows.iter().map(noise).collect::<Result<Vec<_>>>()?;
            Ok(stack(&rows, 0)?)
        }
    }
}

/// The noise of one position of one row: F32 `[V]`.
///
/// `-ln(-ln(1 - u))` for u uniform in (0, 1): the largest values, which decide, come from the smallest u,
/// where single precision is finest. Never infinite.
pub(super) fn of_position(seed: u64, position: usize, v: i32) -> Result<Array> {
    let bits = random::bits(&key(seed, position)?, &[v], 4)?;
    let u = bits
        .astype(DType::F32)?
        .add(0.5f32)?
        .multiply(f32::powi(2.0, -32))?;
    // `-ln(1 - u)`, the variable of an exponential distribution. MLX's `log1p` is eight times as slow as
    // `log` on the CPU; where `1 - u` loses digits, two terms of the series have all that count.
    let rest = u.negative()?.add(1.0f32)?.maximum(f32::powi(2.0, -24))?;
    let series = u.multiply(0.5f32)?.add(1.0f32)?.multiply(&u)?;
    let exponential = u
        .less(f32::powi(2.0, -8))?
        .select(&series, &rest.log()?.negative()?)?;
    Ok(exponential.log()?.negative()?)
}

/// Neighbouring seeds and positions get unrelated keys.
pub(super) fn key(seed: u64, position: usize) -> Result<Key> {
    let mixed = mix(mix(seed).wrapping_add(position as u64));
    let words = [(mixed >> 32) as u32, mixed as u32];
    Ok(Key::from_array(Array::from_slice(&words, &[2])?)?)
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
