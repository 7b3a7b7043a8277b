//! Norms of 16-bit features that are rounded once, on CPUs.

use std::sync::Arc;

use half::{bf16, f16};
use rayon::prelude::*;

use super::norm::{gated_norm_apart, layer_norm};
use super::{Form, Op, form};
use crate::array::Array;
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::kernel::{self, CpuKernel, Spec, View, ViewMut};
use crate::transforms::vjp_with;

/// What is computed of each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// `(x - mean) / sqrt(variance + eps)`
    Layer,
    /// `z / sqrt(mean(z²) + eps)` of each of this many parts of the row, where `z = silu(gate) x`.
    Gated(i32),
}

/// The norm of each row of the first input, times a weight, plus a bias. Inputs: x; the gate of [`Kind::Gated`]; then
/// the weight and the bias where there are any.
struct RowNorm {
    kind: Kind,
    eps: f32,
    has_weight: bool,
    has_bias: bool,
}

/// The norm of `x`, or `None` if this kernel does not compute it. `parts` are the gate, the weight and the bias.
pub(super) fn row_norm(
    kind: Kind,
    x: &Array,
    [gate, weight, bias]: [Option<&Array>; 3],
    eps: f32,
) -> Result<Option<Array>> {
    let is_narrow = [DType::BF16, DType::F16].contains(&x.dtype());
    let size = x.shape().last().copied().unwrap_or(0);
    let is_row = |part: Option<&Array>| {
        part.is_none_or(|part| part.shape() == [size] && part.dtype() == x.dtype())
    };
    let is_like_x = gate.is_none_or(|gate| gate.shape() == x.shape() && gate.dtype() == x.dtype());
    let fits = is_narrow && x.size() > 0 && is_row(weight) && is_row(bias) && is_like_x;
    if !fits || form(Op::Norm)? != Form::Cpu {
        return Ok(None);
    }
    let kernel = RowNorm {
        kind,
        eps,
        has_weight: weight.is_some(),
        has_bias: bias.is_some(),
    };
    let inputs: Vec<&Array> = [Some(x), gate, weight, bias]
        .into_iter()
        .flatten()
        .collect();
    Ok(Some(kernel::apply(kernel, &inputs)?.remove(0)))
}

/// A row's elements that a thread computes before another thread takes the next rows.
const CHUNK: usize = 1 << 14;

impl CpuKernel for RowNorm {
    fn name(&self) -> &'static str {
        "row_norm"
    }

    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn eval(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        match inputs[0].dtype() {
            DType::BF16 => self.rows::<bf16>(inputs, &mut outputs[0]),
            _ => self.rows::<f16>(inputs, &mut outputs[0]),
        }
    }

    fn equivalent(&self, other: &Self) -> bool {
        let bits = |norm: &Self| (norm.eps.to_bits(), norm.has_weight, norm.has_bias);
        self.kind == other.kind && bits(self) == bits(other)
    }

    /// That of the plain form.
    fn vjp(
        self: &Arc<Self>,
        primals: &[Array],
        cotangents: &[Array],
        argnums: &[usize],
        _outputs: &[Array],
    ) -> Result<Vec<Array>> {
        let (_, all) = vjp_with(
            |primals| Ok(vec![self.plain(primals)?]),
            primals,
            cotangents,
        )?;
        Ok(argnums.iter().map(|&at| all[at].clone()).collect())
    }
}

impl RowNorm {
    fn plain(&self, inputs: &[Array]) -> Result<Array> {
        let mut rest = inputs.iter();
        let (x, none) = (&inputs[0], None);
        rest.next();
        let gate = match self.kind {
            Kind::Gated(_) => rest.next(),
            Kind::Layer => none,
        };
        let weight = if self.has_weight { rest.next() } else { none };
        let bias = if self.has_bias { rest.next() } else { none };
        match (self.kind, gate) {
            (Kind::Gated(groups), Some(gate)) => {
                gated_norm_apart(x, gate, weight, groups, self.eps)
            }
            _ => layer_norm(x, weight, bias, self.eps),
        }
    }

    fn rows<T: Narrow>(&self, inputs: &[View<'_>], output: &mut ViewMut<'_>) -> Result<(), String> {
        let mut rest = inputs.iter().map(View::as_slice::<T>);
        let mut next = || {
            rest.next()
                .unwrap_or_else(|| Err("an input is missing".into()))
        };
        let x = next()?;
        let (gate, parts) = match self.kind {
            Kind::Layer => (None, 1),
            Kind::Gated(groups) => (Some(next()?), groups as usize),
        };
        let wide = |row: &[T]| row.iter().map(|&x| x.wide()).collect::<Vec<f32>>();
        let weight = if self.has_weight {
            Some(wide(next()?))
        } else {
            None
        };
        let bias = if self.has_bias {
            Some(wide(next()?))
        } else {
            None
        };
        let size = inputs[0].shape().last().map_or(1, |&size| size as usize);
        let row = |at: usize, work: &mut Vec<f32>, y: &mut [T]| {
            let own = at * size..(at + 1) * size;
            work.clear();
            work.extend(x[own.clone()].iter().map(|&x| x.wide()));
            if let Some(gate) = gate {
                work.iter_mut().zip(&gate[own]).for_each(|(x, gate)| {
                    let gate = gate.wide();
                    *x *= gate / (1.0 + (-gate).exp());
                });
            }
            for part in work.chunks_exact_mut(size / parts) {
                if self.kind == Kind::Layer {
                    let mean = sum(part, |x| x) / part.len() as f32;
                    part.iter_mut().for_each(|x| *x -= mean);
                }
                let square = sum(part, |x| x * x) / part.len() as f32;
                let factor = 1.0 / (square + self.eps).sqrt();
                part.iter_mut().for_each(|x| *x *= factor);
            }
            if let Some(weight) = &weight {
                work.iter_mut()
                    .zip(weight)
                    .for_each(|(x, weight)| *x *= weight);
            }
            if let Some(bias) = &bias {
                work.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            }
            y.iter_mut()
                .zip(&*work)
                .for_each(|(y, &x)| *y = T::narrow(x));
        };
        let y = output.as_mut_slice::<T>()?;
        let at_once = (CHUNK / size).max(1);
        let chunk = |(at, chunk): (usize, &mut [T])| {
            let mut work = Vec::with_capacity(size);
            for (i, y) in chunk.chunks_exact_mut(size).enumerate() {
                row(at * at_once + i, &mut work, y);
            }
        };
        match y.len() > 2 * CHUNK {
            true => y.par_chunks_mut(at_once * size).enumerate().for_each(chunk),
            false => y.chunks_mut(at_once * size).enumerate().for_each(chunk),
        }
        Ok(())
    }
}

/// Numbers of 16 bits.
pub(super) trait Narrow: Element + Copy + Send + Sync {
    fn wide(self) -> f32;
    fn narrow(x: f32) -> Self;
}

impl Narrow for bf16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn narrow(x: f32) -> Self {
        Self::from_f32(x)
    }
}

impl Narrow for f16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn narrow(x: f32) -> Self {
        Self::from_f32(x)
    }
}

/// The sum of `of` each number, in an order that instructions for several numbers can keep.
fn sum(numbers: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    let whole = numbers.chunks_exact(LANES);
    let rest: f32 = whole.remainder().iter().map(|&x| of(x)).sum();
    for numbers in whole {
        for (sum, &x) in sums.iter_mut().zip(numbers) {
            *sum += of(x);
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::super::{gated_norm, layer_norm_rounded_once, plainly};
    use super::*;
    use crate::random::{self, Key};
    use crate::transforms::{grad_with, vmap_with};

    const SHAPE: [i32; 3] = [3, 5, 48];

    fn normal(seed: u64, shape: &[i32], dtype: DType) -> Array {
        let x = random::normal(&Key::new(seed).unwrap(), shape, DType::F32);
        x.unwrap().astype(dtype).unwrap()
    }

    /// Both norms of inputs in a dtype.
    fn norms(inputs: &[Array]) -> Result<[Array; 3]> {
        let [x, gate, weight, bias] = [0, 1, 2, 3].map(|at| &inputs[at]);
        Ok([
            layer_norm_rounded_once(x, weight, bias, 1e-3)?,
            gated_norm(x, gate, weight, 1, 1e-3)?,
            gated_norm(x, gate, weight, 4, 1e-3)?,
        ])
    }

    fn inputs(dtype: DType) -> [Array; 4] {
        let size = &SHAPE[2..];
        [(1, &SHAPE[..]), (2, &SHAPE), (3, size), (4, size)]
            .map(|(seed, shape)| normal(seed, shape, dtype))
    }

    /// The part of elements that differ, and the largest difference.
    fn off(a: &Array, b: &Array) -> Result<[f32; 2]> {
        let off = a
            .astype(DType::F32)?
            .subtract(b.astype(DType::F32)?)?
            .abs()?;
        let differ = off.greater(0.0)?.astype(DType::F32)?.mean(.., false)?;
        Ok([differ.item()?, off.max(.., false)?.item()?])
    }

    #[test]
    fn sixteen_bits_are_rounded_once() -> Result<()> {
        for (dtype, step) in [(DType::BF16, 0.04), (DType::F16, 0.005)] {
            let narrow = inputs(dtype);
            let wide: Vec<Array> = narrow
                .iter()
                .map(|x| x.astype(DType::F32))
                .collect::<Result<_>>()?;
            for (found, exact) in norms(&narrow)?.iter().zip(&norms(&wide)?) {
                let [differ, most] = off(found, &exact.astype(dtype)?)?;
                // Sums in another order round a few of them to the other side.
                assert!(differ < 0.01 && most < step, "{dtype}: {differ} {most}");
            }
            // The plain form rounds several times.
            let plain = plainly(|| norms(&narrow))?;
            for (found, plain) in norms(&narrow)?.iter().zip(&plain) {
                let [differ, most] = off(found, plain)?;
                assert!(
                    differ > 0.05 && most < 4.0 * step,
                    "{dtype}: {differ} {most}"
                );
            }
        }
        Ok(())
    }

    #[test]
    fn derivatives_and_maps_are_those_of_the_plain_form() -> Result<()> {
        let narrow = inputs(DType::BF16);
        let weights = normal(9, &SHAPE, DType::F32);
        for at in 0..3 {
            let sum = |x: &[Array]| {
                let y = norms(x)?[at].astype(DType::F32)?;
                Ok(vec![y.multiply(&weights)?.sum(.., false)?])
            };
            let all = [0, 1, 2, 3];
            let found = grad_with(sum, &narrow, &all)?;
            let plain = plainly(|| grad_with(sum, &narrow, &all))?;
            for (found, plain) in found.iter().zip(&plain) {
                assert!(off(found, plain)?[1] <= 0.25, "{at}");
            }
            let one = |x: &[Array]| Ok(vec![norms(x)?[at].clone()]);
            let axes = [Some(1), Some(1), None, None];
            let mapped = vmap_with(one, &narrow, &axes, &[Some(1)])?;
            assert!(
                mapped[0]
                    .array_equal(&norms(&narrow)?[at])?
                    .item::<bool>()?
            );
        }
        Ok(())
    }
}
