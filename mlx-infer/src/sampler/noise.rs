//! Gumbel noise from (seed, position): the same whoever shares the batch.

use mlx_core::random::{self, Key};
use mlx_core::transforms::vmap;
use mlx_core::{Array, DType};

use super::Row;
use crate::error::Result;

/// Noise for each row's next token: F32 `[B, V]`.
pub(super) fn gumbel(rows: &[Row<'_>], pending: bool, v: i32) -> Result<Array> {
    let position = |row: &Row<'_>| row.history.ids().len() + usize::from(pending);
    if let [row] = rows {
        return of_position(row.seed, position(row), v)?
            .expand_dims(0)
            .map_err(Into::into);
    }
    let words: Vec<u32> = rows
        .iter()
        .flat_map(|row| words(row.seed, position(row)))
        .collect();
    let keys = Array::from_slice(&words, &[rows.len() as i32, 2])?;
    let of_key = |keys: &[Array]| {
        let key = Key::from_array(keys[0].clone())?;
        Ok(vec![random::bits(&key, &[v], 4)?])
    };
    let bits = vmap(of_key, &[keys], &[Some(0)], &[Some(0)])?.remove(0);
    of_bits(&bits)
}

/// The noise of one position of one row: F32 `[V]`.
pub(super) fn of_position(seed: u64, position: usize, v: i32) -> Result<Array> {
    of_bits(&random::bits(&key(seed, position)?, &[v], 4)?)
}

/// Gumbel variables from 32 random bits each.
///
/// `-ln(-ln(1 - u))` for u uniform in (0, 1): the largest values, which decide, come from the smallest u,
/// where single precision is finest. Never infinite.
fn of_bits(bits: &Array) -> Result<Array> {
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
    let words = words(seed, position);
    Ok(Key::from_array(Array::from_slice(&words, &[2])?)?)
}

fn words(seed: u64, position: usize) -> [u32; 2] {
    let mixed = mix(mix(seed).wrapping_add(position as u64));
    [(mixed >> 32) as u32, mixed as u32]
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
