//! GELU in one pass.

use std::f64::consts::{FRAC_1_SQRT_2, PI};
use std::sync::Arc;

use half::{bf16, f16};
use rayon::prelude::*;

use super::row_norm::Narrow;
use super::{Form, Op, form};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{self, CpuKernel, Spec, View, ViewMut};

/// `x * (1 + erf(x / sqrt(2))) / 2`, elementwise: [`Array::gelu`] in one pass on CPUs, with an error
/// of at most 2e-6 in F32. A result of 16 bits is rounded once; the plain form rounds each of its
/// operations. Other dtypes and devices run the plain form.
///
/// ```
/// use mlx_core::{Array, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = Array::from_slice(&[-1.0f32, 0.0, 2.0], &[3])?;
/// let far = fast::gelu(&x)?.subtract(x.gelu()?)?.abs()?.max(.., false)?;
/// assert!(far.item::<f32>()? < 2e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// MLX refuses the dtype.
pub fn gelu(x: &Array) -> Result<Array> {
    match form(Op::Gated)? {
        Form::Cpu if [DType::F32, DType::BF16, DType::F16].contains(&x.dtype()) => {
            Ok(kernel::apply(Gelu, &[x])?.remove(0))
        }
        _ => x.gelu(),
    }
}

struct Gelu;

/// Elements that a thread computes at a time: they stay in its L1 cache.
const CHUNK: usize = 1 << 13;

impl CpuKernel for Gelu {
    fn name(&self) -> &'static str {
        "gelu"
    }

    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(&inputs[0].shape, inputs[0].dtype)])
    }

    fn eval(&self, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        match outputs[0].dtype() {
            DType::BF16 => each(outputs[0].as_mut_slice::<bf16>()?, narrow),
            DType::F16 => each(outputs[0].as_mut_slice::<f16>()?, narrow),
            _ => each(outputs[0].as_mut_slice::<f32>()?, of),
        }
        Ok(())
    }

    fn donate_input(&self) -> Option<usize> {
        Some(0)
    }

    fn equivalent(&self, _: &Self) -> bool {
        true
    }

    /// `Phi(x) + x phi(x)`
    fn vjp(
        self: &Arc<Self>,
        primals: &[Array],
        cotangents: &[Array],
        _argnums: &[usize],
        _outputs: &[Array],
    ) -> Result<Vec<Array>> {
        let x = &primals[0];
        let share = x.multiply(FRAC_1_SQRT_2)?.erf()?.add(1.0)?.multiply(0.5)?;
        let density = x.square()?.multiply(-0.5)?.exp()?;
        let density = density.multiply(1.0 / (2.0 * PI).sqrt())?;
        let slope = share.add(x.multiply(density)?)?;
        Ok(vec![cotangents[0].multiply(slope)?])
    }
}

fn each<T: Copy + Send>(numbers: &mut [T], of: impl Fn(T) -> T + Sync) {
    let chunk = |chunk: &mut [T]| chunk.iter_mut().for_each(|x| *x = of(*x));
    match numbers.len() > 4 * CHUNK {
        true => numbers.par_chunks_mut(CHUNK).for_each(chunk),
        false => chunk(numbers),
    }
}

fn narrow<T: Narrow>(x: T) -> T {
    T::narrow(of(x.wide()))
}

/// Beyond this, `erf(x / sqrt(2))` is 1 in F32.
const EDGE: f32 = 5.4;

/// Up to the edge `erf(x / sqrt(2))` is `x p(x^2) / q(x^2)` with an error of 1.1e-8. The
/// polynomials are a fit by least squares, with weights that even out the errors.
#[inline(always)]
fn of(x: f32) -> f32 {
    // NaN stays NaN: the comparisons are false.
    let near = if x > EDGE { EDGE } else { x };
    let near = if near < -EDGE { -EDGE } else { near };
    let t = near * near;
    let p = 4.677_646_7e-8 * t + 1.271_975_3e-5;
    let p = (p * t + 3.286_029_8e-4) * t + 0.009_301_457;
    let p = (p * t + 0.066_740_49) * t + 0.797_884_5;
    let q = 1.216_624_4e-6 * t + 7.239_369e-5;
    let q = (q * t + 0.001_858_867_2) * t + 0.028_377_55;
    let q = (q * t + 0.250_312_9) * t + 1.0;
    x * (0.5 + 0.5 * (near * p / q))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transforms::grad_with;

    #[test]
    fn the_kernel_equals_the_plain_form() -> Result<()> {
        let numbers: Vec<f32> = (-90_000..90_000).map(|i| i as f32 * 1e-4).collect();
        let x = Array::from_slice(&numbers, &[2, 90_000])?;
        let far = gelu(&x)?.subtract(x.gelu()?)?.abs()?.max(.., false)?;
        assert!(far.item::<f32>()? < 2e-6);
        // An input that has other strides, and one that is read again.
        let turned = gelu(&x.swapaxes(0, 1)?)?.swapaxes(0, 1)?;
        assert!(turned.array_equal(&gelu(&x)?)?.item::<bool>()?);
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, -1e30];
        let odd = gelu(&Array::from_slice(&odd, &[5])?)?.to_vec::<f32>()?;
        assert!(
            odd[0].is_nan() && odd[1] == f32::INFINITY && odd[3] == 0.0,
            "{odd:?}"
        );
        Ok(())
    }

    #[test]
    fn sixteen_bits_are_rounded_once() -> Result<()> {
        let numbers: Vec<f32> = (-600..600).map(|i| i as f32 * 0.01).collect();
        for dtype in [DType::BF16, DType::F16] {
            let x = Array::from_slice(&numbers, &[1200])?.astype(dtype)?;
            let exact = gelu(&x.astype(DType::F32)?)?.astype(dtype)?;
            assert!(gelu(&x)?.array_equal(&exact)?.item::<bool>()?, "{dtype}");
        }
        Ok(())
    }

    #[test]
    fn the_derivative_is_that_of_the_plain_form() -> Result<()> {
        let x = Array::from_slice(&[-3.0f32, -0.5, 0.0, 0.7, 4.0], &[5])?;
        let slope = |f: fn(&Array) -> Result<Array>| {
            let sum = |x: &[Array]| Ok(vec![f(&x[0])?.sum(.., false)?]);
            grad_with(sum, std::slice::from_ref(&x), &[0])
        };
        let (ours, plain) = (slope(gelu)?, slope(Array::gelu)?);
        let far = ours[0].subtract(&plain[0])?.abs()?.max(.., false)?;
        assert!(far.item::<f32>()? < 1e-5);
        Ok(())
    }
}
