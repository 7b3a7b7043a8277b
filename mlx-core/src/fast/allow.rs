//! Logits with some tokens forbidden.

use std::sync::Arc;

use half::{bf16, f16};

use super::{Form, Op, form};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::op;
use crate::kernel::{self, CpuKernel, Spec, View, ViewMut};

/// Bits in a word of a mask.
const BITS: usize = 32;

/// The logits `[B, V]`, of floating point, with minus infinity for each token that its row's mask forbids. Bit `i % 32`
/// of word `i / 32` of a mask allows token `i`; a mask has `ceil(V / 32)` words. A row without a mask is unchanged. NaN
/// and infinity are never replaced, so that [`draw`](super::draw()) finds them.
///
/// ```
/// use mlx_core::{DType, fast, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let logits = zeros(&[1, 3], DType::F32)?;
/// let allowed = fast::allow(&logits, &[Some([0b101].into())])?;
/// assert_eq!(allowed.to_vec::<f32>()?, [0.0, f32::NEG_INFINITY, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is not one mask or `None` for each row, a mask has another length, or `logits` has another shape or dtype.
pub fn allow(logits: &Array, rows: &[Option<Arc<[u32]>>]) -> Result<Array> {
    let [b, v] = logits.dims()?;
    let words = (v.max(0) as usize).div_ceil(BITS);
    let fits = |row: &Option<Arc<[u32]>>| row.as_ref().is_none_or(|mask| mask.len() == words);
    if b as usize != rows.len() || !logits.dtype().is_float() || !rows.iter().all(fits) {
        let lens: Vec<usize> = rows.iter().flatten().map(|mask| mask.len()).collect();
        let message = format!(
            "a mask of tokens needs logits [B, V] of floating point and ceil(V / 32) words for each row, found {} {:?} and {lens:?} words for {} rows",
            logits.dtype(),
            logits.shape(),
            rows.len()
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    let has_kernel = [DType::F32, DType::F16, DType::BF16].contains(&logits.dtype());
    match form(Op::Sample)? {
        Form::Cpu if has_kernel => {
            let kernel = Allow {
                rows: rows.to_vec(),
            };
            Ok(kernel::apply(kernel, &[logits])?.remove(0))
        }
        Form::Cuda if has_kernel && logits.size() > 0 => {
            let bits = bits(rows, words)?;
            op!(mlxrs_fast_allow(logits, bits))
        }
        _ => plain(logits, rows, words),
    }
}

/// The masks of all rows, U32 `[B, words]`. A row without one allows all tokens.
fn bits(rows: &[Option<Arc<[u32]>>], words: usize) -> Result<Array> {
    let all = vec![u32::MAX; words];
    let bits: Vec<u32> = rows
        .iter()
        .flat_map(|row| row.as_deref().unwrap_or(&all))
        .copied()
        .collect();
    Array::from_slice(&bits, &[rows.len() as i32, words as i32])
}

fn plain(logits: &Array, rows: &[Option<Arc<[u32]>>], words: usize) -> Result<Array> {
    let [b, v] = logits.dims()?;
    let of_word: Vec<u32> = (0..BITS).map(|bit| 1 << bit).collect();
    let of_word = Array::from_slice(&of_word, &[1, 1, BITS as i32])?;
    let allowed = bits(rows, words)?
        .expand_dims(-1)?
        .bitwise_and(&of_word)?
        .not_equal(0u32)?
        .reshape(&[b, (words * BITS) as i32])?
        .slice_axis(-1, 0, v)?;
    let stays = logits.less(f32::INFINITY)?.logical_not()?;
    allowed
        .logical_or(&stays)?
        .select(logits, f32::NEG_INFINITY)
}

/// Writes minus infinity over the tokens that are forbidden.
struct Allow {
    rows: Vec<Option<Arc<[u32]>>>,
}

impl CpuKernel for Allow {
    fn name(&self) -> &'static str {
        "allow"
    }

    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(&inputs[0].shape, inputs[0].dtype)])
    }

    fn eval(&self, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let x = &mut outputs[0];
        match x.dtype() {
            DType::F32 => forbid(x.as_mut_slice()?, &self.rows, f32::NEG_INFINITY, |x| {
                x < f32::INFINITY
            }),
            DType::F16 => forbid(x.as_mut_slice()?, &self.rows, f16::NEG_INFINITY, |x| {
                x < f16::INFINITY
            }),
            _ => forbid(x.as_mut_slice()?, &self.rows, bf16::NEG_INFINITY, |x| {
                x < bf16::INFINITY
            }),
        }
        Ok(())
    }

    fn donate_input(&self) -> Option<usize> {
        Some(0)
    }
}

fn forbid<T: Copy>(
    x: &mut [T],
    rows: &[Option<Arc<[u32]>>],
    forbidden: T,
    is_below: impl Fn(T) -> bool,
) {
    let v = x.len() / rows.len().max(1);
    for (x, mask) in x.chunks_mut(v.max(1)).zip(rows) {
        let Some(mask) = mask else { continue };
        for (x, &word) in x.chunks_mut(BITS).zip(mask.iter()) {
            for (bit, x) in x.iter_mut().enumerate() {
                if word >> bit & 1 == 0 && is_below(*x) {
                    *x = forbidden;
                }
            }
        }
    }
}
