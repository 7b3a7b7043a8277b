//! Codes one column after the other (GPTQ, Frantar et al., arXiv:2210.17323): the columns that are still to be rounded
//! make up for the errors of those before them. As in mlx-lm, the columns keep their order, each group has a scale and
//! a bias for its weights at that time, and embeddings are rounded. Beyond mlx-lm, the range of a group is cut where that
//! lowers its error.

use std::collections::BTreeMap;

use mlx_core::ops::concat;
use mlx_core::ops::quantize::{Quantized, quantize_with};
use mlx_core::{Array, DType, QuantMode, Scheme, eye, linalg};
use mlx_models::Model;
use mlx_nn::Weight;

use super::{Dense, Matrices, Schemes, embeddings, weight};
use crate::error::{Result, argument};

/// The parts of a range, of which up to half are cut off.
const PARTS: u32 = 20;
/// What is added to the diagonal of the moments, as parts of its mean. Later ones are for moments that cannot be
/// decomposed with those before.
const DAMPING: [f32; 3] = [0.01, 0.1, 1.0];

/// The matrices at the paths of `schemes`, which are affine, from the [`moments`](super::moments) of their inputs.
/// Embeddings and matrices without moments are rounded; the paths of the latter are the second result. The model is
/// unchanged.
///
/// # Errors
/// A path is no dense matrix of the model, a scheme is not affine or does not fit a shape, or moments are not finite.
pub fn pack(
    model: &dyn Model,
    schemes: &Schemes,
    moments: &BTreeMap<String, Array>,
) -> Result<(Matrices, Vec<String>)> {
    let dense = Dense::of(model, schemes.keys())?;
    let tables = embeddings(model)?;
    let (mut packed, mut rounded) = (BTreeMap::new(), Vec::new());
    for (path, array) in &dense.0 {
        let scheme = schemes[path];
        if scheme.mode != QuantMode::Affine {
            let known = QuantMode::Affine;
            return Err(argument(format!(
                "{path}: GPTQ has no {scheme}; only {known} schemes are supported"
            )));
        }
        let moments = moments.get(path).filter(|_| !tables.contains(path));
        let matrix = match moments.map(|moments| factor(path, moments)).transpose()? {
            Some(Some(factor)) => columns(array, &factor, scheme)?,
            known => {
                if known.is_none() && !tables.contains(path) {
                    rounded.push(path.clone());
                }
                let parts = quantize_with(array, scheme).map_err(|error| error.context(path))?;
                weight(parts, scheme)?
            }
        };
        packed.insert(path.clone(), matrix);
    }
    Ok((packed, rounded))
}

/// The upper triangular `U` with `U^T U` the inverse of the damped moments, `[in, in]`; `None` if all inputs are zero.
fn factor(path: &str, moments: &Array) -> Result<Option<Array>> {
    let mean = moments.diagonal()?.mean(.., false)?.item::<f32>()?;
    if !mean.is_finite() {
        return Err(argument(format!(
            "{path}: its inputs are not finite numbers"
        )));
    }
    if mean <= 0.0 {
        return Ok(None);
    }
    let one = eye(moments.dim(0)?, DType::F32)?;
    let decomposed = |damping: f32| -> mlx_core::Result<Option<Array>> {
        let damped = moments.divide(mean)?.add(one.multiply(damping)?)?;
        let inverse = linalg::cholesky_inv(&linalg::cholesky(&damped)?)?;
        let factor = linalg::cholesky_with(&inverse, linalg::Half::Upper)?;
        factor.eval()?;
        let is_finite = factor.isfinite()?.all(.., false)?.item::<bool>()?;
        Ok(is_finite.then_some(factor))
    };
    let mut last = None;
    for damping in DAMPING {
        match decomposed(damping) {
            Ok(Some(factor)) => return Ok(Some(factor)),
            Ok(None) => {}
            Err(error) => last = Some(error),
        }
    }
    Err(match last {
        Some(error) => error.context(path).into(),
        None => argument(format!(
            "{path}: the moments of its inputs have no Cholesky factor"
        )),
    })
}

/// Packs a matrix `[.., out, in]` column by column.
fn columns(array: &Array, factor: &Array, scheme: Scheme) -> Result<Weight> {
    let inputs = array.dim(-1)?;
    let group = scheme.group_size;
    if inputs % group != 0 {
        return Err(argument(format!(
            "rows of {inputs} cannot be packed with {scheme}"
        )));
    }
    let diagonal: Vec<f32> = factor.diagonal()?.to_vec()?;
    let mut rest = array.astype(DType::F32)?.reshape(&[-1, inputs])?;
    let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for begin in (0..inputs).step_by(group as usize) {
        let end = begin + group;
        let mut own = rest.slice_axis(1, 0, group)?;
        let of_group = &diagonal[begin as usize..end as usize];
        let [scale, bias] = grid(&own, of_group, scheme, array.dtype())?;
        let rows = factor.slice_axis(0, begin, end)?;
        let block = rows.slice_axis(1, begin, end)?;
        let (mut errors, mut chosen) = (Vec::new(), Vec::new());
        for k in 0..group {
            let column = own.slice_axis(1, k, k + 1)?;
            let code = nearest(&column, &scale, &bias, scheme)?;
            let error = column.subtract(code.multiply(&scale)?.add(&bias)?)?;
            let error = error.divide(diagonal[(begin + k) as usize])?;
            // The factor is triangular: columns before k stay as they are.
            own = own.subtract(error.multiply(block.slice_axis(0, k, k + 1)?)?)?;
            errors.push(error);
            chosen.push(code);
        }
        rest = rest.slice_axis(1, group, inputs - begin)?;
        if end < inputs {
            let later = rows.slice_axis(1, end, inputs)?;
            rest = rest.subtract(concat(&errors, 1)?.matmul(&later)?)?;
        }
        let chosen = concat(&chosen, 1)?.astype(DType::U8)?;
        mlx_core::eval([&rest, &chosen, &scale, &bias])?;
        codes.push(chosen);
        scales.push(scale);
        biases.push(bias);
    }
    let shape = |last: i32| [&array.shape()[..array.shape().len() - 1], &[last]].concat();
    let words = words(&concat(&codes, 1)?.to_vec::<u8>()?, scheme.bits as usize);
    let parts = |parts: &[Array]| {
        let all = concat(parts, 1)?.reshape(&shape(inputs / group))?;
        all.astype(array.dtype())
    };
    let packed = Quantized {
        packed: Array::from_slice(&words, &shape(inputs * scheme.bits / 32))?,
        scales: parts(&scales)?,
        biases: Some(parts(&biases)?),
    };
    weight(packed, scheme)
}

/// The codes of numbers, F32 of their shape.
fn nearest(of: &Array, scale: &Array, bias: &Array, scheme: Scheme) -> mlx_core::Result<Array> {
    let largest = ((1u32 << scheme.bits) - 1) as f32;
    let code = of.subtract(bias)?.divide(scale)?.round()?;
    code.clip(0.0, largest)
}

/// Scale and bias of each row of a group, F32 `[rows, 1]`, of values that `dtype` has: those of the range, among the
/// whole range and parts of it, whose nearest codes have the smallest error. `diagonal` is that of the factor, by which
/// GPTQ divides the errors of columns.
fn grid(group: &Array, diagonal: &[f32], scheme: Scheme, dtype: DType) -> Result<[Array; 2]> {
    // Codes are chosen for the numbers that are stored.
    let stored = |part: &Array| part.astype(dtype)?.astype(DType::F32);
    let weights: Vec<f32> = diagonal.iter().map(|d| 1.0 / (d * d)).collect();
    let weights = Array::from_slice(&weights, &[1, weights.len() as i32])?;
    let (low, high) = (group.min(-1, true)?, group.max(-1, true)?);
    let mut best: Option<[Array; 3]> = None;
    for step in 0..PARTS / 2 {
        let part = 1.0 - step as f32 / PARTS as f32;
        let cut = group.maximum(low.multiply(part)?)?;
        let cut = cut.minimum(high.multiply(part)?)?;
        // The whole range is that of the group as it is.
        let cut = if step == 0 { group } else { &cut };
        let Quantized {
            scales: scale,
            biases: Some(bias),
            ..
        } = quantize_with(cut, scheme)?
        else {
            unreachable!("the scheme is affine");
        };
        let (scale, bias) = (stored(&scale)?, stored(&bias)?);
        let code = nearest(group, &scale, &bias, scheme)?;
        let off = group.subtract(code.multiply(&scale)?.add(&bias)?)?;
        let error = off.square()?.multiply(&weights)?.sum(-1, true)?;
        best = Some(match best {
            None => [error, scale, bias],
            Some([lowest, old_scale, old_bias]) => {
                let is_better = error.less(&lowest)?;
                let pick = |new: &Array, old: &Array| is_better.select(new, old);
                [
                    pick(&error, &lowest)?,
                    pick(&scale, &old_scale)?,
                    pick(&bias, &old_bias)?,
                ]
            }
        });
    }
    let [_, scale, bias] = best.expect("the whole range was tried");
    mlx_core::eval([&scale, &bias])?;
    Ok([scale, bias])
}

/// Codes of `bits` bits, the first in the lowest bits of a word, without gaps between words.
fn words(codes: &[u8], bits: usize) -> Vec<u32> {
    let mut words = Vec::with_capacity(codes.len() * bits / 32);
    let (mut held, mut count) = (0u64, 0);
    for &code in codes {
        held |= u64::from(code) << count;
        count += bits;
        if count >= 32 {
            words.push(held as u32);
            held >>= 32;
            count -= 32;
        }
    }
    words
}
