//! Bits by sensitivity, as mlx-lm's `dynamic_quant`: matrices that matter more get more bits.
//!
//! mlx-lm takes the gradient where all matrices have few bits. Here it is that halfway between few and many, which is near
//! the mixed model and exact to second order for all matrices together.

use std::collections::BTreeMap;

use mlx_core::transforms::value_and_grad_with;
use mlx_core::{Array, DType, Scheme};
use mlx_models::Model;

use super::{Dense, Schemes, check, divergence, log_probs, put, rounded, stored_bits};
use crate::batch::{Batch, Example};
use crate::error::{Result, argument};
use crate::feed::Feed;

/// How much the divergence falls when a matrix has the scheme of `high` instead of that of `low`: nats a token,
/// for every path of `low`, by the gradient where all matrices are halfway between both. The model is unchanged.
///
/// # Errors
/// A path is no dense matrix of the model or not one of `high`, or there is nothing to learn from.
pub fn sensitivities(
    model: &mut dyn Model,
    low: &Schemes,
    high: &Schemes,
    examples: &[Example],
    batch_size: usize,
) -> Result<BTreeMap<String, f64>> {
    let dense = Dense::of(model, low.keys())?;
    let with = |schemes: &Schemes| -> Result<Vec<Array>> {
        let matrices = dense.0.iter().map(|(path, array)| {
            let scheme = schemes.get(path).copied();
            let scheme = scheme.ok_or_else(|| argument(format!("{path} has no second scheme")))?;
            let values = rounded(array, scheme, array.dtype())?;
            values.eval()?;
            Ok(values)
        });
        matrices.collect()
    };
    let (low, high) = (with(low)?, with(high)?);
    let mut sums = vec![0.0; low.len()];
    let result = measure(
        model,
        &dense,
        (&low, &high),
        (examples, batch_size),
        &mut sums,
    );
    dense.put(model)?;
    let weight = result?;
    let names = dense.0.keys().cloned();
    Ok(names
        .zip(sums.into_iter().map(|sum| sum / weight))
        .collect())
}

fn measure(
    model: &mut dyn Model,
    dense: &Dense,
    (low, high): (&[Array], &[Array]),
    (examples, batch_size): (&[Example], usize),
    sums: &mut [f64],
) -> Result<f64> {
    check(batch_size)?;
    let all: Vec<usize> = (0..low.len()).collect();
    let middle = low.iter().zip(high).map(|(low, high)| {
        let middle = low.add(high)?.multiply(0.5)?.astype(low.dtype())?;
        middle.eval()?;
        Ok(middle)
    });
    let middle: Vec<Array> = middle.collect::<mlx_core::Result<_>>()?;
    let mut weight = 0.0;
    for rows in Feed::in_order(examples, batch_size) {
        let rows = rows.iter().map(|&index| &examples[index]);
        let rows: Vec<&Example> = rows.filter(|example| example.learnt() > 0).collect();
        if rows.is_empty() {
            continue;
        }
        let batch = Batch::new(rows.into_iter().map(|example| [example]))?;
        dense.put(model)?;
        let teacher = log_probs(model, &batch, 1.0)?;
        teacher.eval()?;
        let (_, grads) = value_and_grad_with(
            |values| {
                put(model, &dense.names(), values)?;
                let student = log_probs(&*model, &batch, 1.0)?;
                Ok(vec![divergence(&student, &batch, &teacher)?])
            },
            &middle,
            &all,
        )?;
        for ((sum, grad), (low, high)) in sums.iter_mut().zip(&grads).zip(low.iter().zip(high)) {
            let move_ = low.subtract(high)?.astype(DType::F32)?;
            let fall = grad.astype(DType::F32)?.multiply(move_)?.sum(.., false)?;
            *sum += f64::from(fall.item::<f32>()?);
        }
        weight += batch.weight;
    }
    match weight > 0.0 {
        true => Ok(weight),
        false => Err(argument("no example has anything to learn from")),
    }
}

/// Gives the schemes of `high` to the matrices that gain the most for each bit, up to a mean of `bits` a weight, scales
/// and biases included; all others have the schemes of `low`. `sizes` are the numbers of elements.
///
/// # Errors
/// The mean is below that of `low`.
pub fn mixed(
    gains: &BTreeMap<String, f64>,
    sizes: &BTreeMap<String, usize>,
    low: &Schemes,
    high: &Schemes,
    bits: f64,
) -> Result<Schemes> {
    let cost = |path: &String, scheme: &Scheme| sizes[path] as f64 * stored_bits(*scheme);
    let elements: usize = low.keys().map(|path| sizes[path]).sum();
    let mut used: f64 = low.iter().map(|(path, scheme)| cost(path, scheme)).sum();
    let budget = bits * elements as f64;
    if used > budget {
        return Err(argument(format!(
            "{bits} bits a weight are fewer than the {:.2} of all weights in few bits",
            used / elements as f64
        )));
    }
    let extra = |path: &String| cost(path, &high[path]) - cost(path, &low[path]);
    let mut order: Vec<&String> = low.keys().filter(|path| extra(path) > 0.0).collect();
    order.sort_by(|a, b| (gains[*b] / extra(b)).total_cmp(&(gains[*a] / extra(a))));
    let mut schemes = low.clone();
    for path in order {
        if gains[path] > 0.0 && used + extra(path) <= budget {
            used += extra(path);
            schemes.insert(path.clone(), high[path]);
        }
    }
    Ok(schemes)
}
