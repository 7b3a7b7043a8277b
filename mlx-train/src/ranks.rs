//! What the ranks of a run exchange. Each computes its rows of every batch; the sums of losses and gradients are on all of
//! them, with the same bits, so that all take the same steps.

use mlx_core::distributed::{all_gather, all_sum};
use mlx_core::ops::arange;
use mlx_core::{Array, DType};
use mlx_nn::Gradients;
use mlx_nn::shard::{Ranks, with_group};

use crate::error::{Error, ErrorKind, Result, argument};
use crate::feed::Numbers;

/// The error of a rank that has lost the others.
fn lost(ranks: Ranks, error: &mlx_core::Error) -> Error {
    let message = format!(
        "rank {} of {} cannot go on without the others: {error}",
        ranks.rank(),
        ranks.size()
    );
    Error::new(ErrorKind::Compute, message)
}

/// The numbers of every rank, in the order of the ranks. All ranks call it at the same place, with as many numbers.
///
/// # Errors
/// Another rank has ended.
fn gathered(ranks: Ranks, own: &[u64]) -> Result<Vec<Vec<u64>>> {
    let halves: Vec<u32> = (own.iter())
        .flat_map(|&word| [word as u32, (word >> 32) as u32])
        .collect();
    let all = with_group(|group| {
        let own = Array::from_slice(&halves, &[halves.len() as i32])?;
        all_gather(&own, group)?.to_vec::<u32>()
    });
    let all = all.map_err(|error| lost(ranks, &error))?;
    let word = |pair: &[u32]| u64::from(pair[0]) | u64::from(pair[1]) << 32;
    let each = all.chunks(halves.len().max(1));
    Ok(each
        .map(|words| words.chunks(2).map(word).collect())
        .collect())
}

/// The sums of the ranks' numbers, added in the order of the ranks.
///
/// # Errors
/// Another rank has ended.
pub(crate) fn sums<const N: usize>(ranks: Ranks, own: [f64; N]) -> Result<[f64; N]> {
    if ranks.size() == 1 {
        return Ok(own);
    }
    let mut sums = [0.0; N];
    for numbers in gathered(ranks, &own.map(f64::to_bits))? {
        for (sum, bits) in sums.iter_mut().zip(numbers) {
            *sum += f64::from_bits(bits);
        }
    }
    Ok(sums)
}

/// Whether it is so on any rank.
///
/// # Errors
/// Another rank has ended.
pub(crate) fn any(ranks: Ranks, own: bool) -> Result<bool> {
    Ok(sums(ranks, [f64::from(u8::from(own))])?[0] > 0.0)
}

/// Checks that all ranks have the same `facts`: names, and hashes of what they name.
///
/// # Errors
/// They have not; the message names the first one that differs, and a rank. Another rank has ended.
pub(crate) fn check_same(ranks: Ranks, facts: &[(&str, u64)]) -> Result<()> {
    if ranks.size() == 1 {
        return Ok(());
    }
    let own: Vec<u64> = facts.iter().map(|(_, hash)| *hash).collect();
    let all = gathered(ranks, &own)?;
    for (at, (name, _)) in facts.iter().enumerate() {
        if let Some(rank) = all.iter().position(|facts| facts[at] != all[0][at]) {
            return Err(argument(format!(
                "the ranks differ in {name}: rank {rank} has another than rank 0"
            )));
        }
    }
    Ok(())
}

/// Replaces the gradients by their sums over the ranks, which have the same bits on all ranks.
///
/// # Errors
/// Another rank has ended.
pub(crate) fn sum_gradients(ranks: Ranks, gradients: &mut Gradients) -> Result<()> {
    if ranks.size() == 1 {
        return Ok(());
    }
    for gradient in gradients.values_mut() {
        let sum = with_group(|group| {
            let sum = all_sum(gradient, group)?;
            // One after the other, so that all ranks send them in the same order.
            mlx_core::eval([&sum])?;
            Ok(sum)
        });
        *gradient = sum.map_err(|error| lost(ranks, &error))?;
    }
    Ok(())
}

/// A hash of the bits of all parameters.
///
/// # Errors
/// An evaluation fails.
pub(crate) fn digest(parameters: &[(String, Array)]) -> Result<u64> {
    let mut hash = parameters.len() as u64;
    for (_, array) in parameters {
        let word = match array.dtype().size() {
            2 => DType::U16,
            _ => DType::U32,
        };
        // A number counts with its column, so that exchanged ones are noticed.
        let width = array.shape().last().copied().unwrap_or(1);
        let bits = array.reshape(&[-1, width])?.view(word)?;
        let columns = bits.sum(0, false)?.astype(DType::U32)?;
        let places = arange(1, columns.dim(0)? + 1, 1, DType::U32)?;
        let sum = columns.multiply(places)?.sum(.., false)?;
        hash = Numbers::new(hash, sum.item::<u32>()?.into()).next();
    }
    Ok(hash)
}

/// A hash of a text.
pub(crate) fn hash(text: &str) -> u64 {
    let mut hash = text.len() as u64;
    for byte in text.bytes() {
        hash = Numbers::new(hash, byte.into()).next();
    }
    hash
}
