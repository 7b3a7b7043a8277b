//! A kernel in Rust, as an operation of the lazy graph: with a derivative, and under `vmap`.

use std::sync::Arc;

use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut};
use mlx_core::transforms::{grad, vmap};
use mlx_core::{Array, DType, Error, ErrorKind, Result};

/// `y[i] = decay · y[i - 1] + x[i]`: a recurrence, which no elementwise operation computes.
struct Decay(f32);

impl CpuKernel for Decay {
    fn name(&self) -> &'static str {
        "decay"
    }

    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match inputs {
            [x] if x.dtype == DType::F32 => Ok(vec![x.clone()]),
            _ => {
                let message = format!("needs one F32 array, found {inputs:?}");
                Err(Error::new(ErrorKind::DType, message))
            }
        }
    }

    fn eval(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let mut last = 0.0;
        let x = inputs[0].as_slice::<f32>()?;
        for (y, x) in outputs[0].as_mut_slice::<f32>()?.iter_mut().zip(x) {
            last = self.0 * last + x;
            *y = last;
        }
        Ok(())
    }

    /// The same recurrence from the end.
    fn vjp(
        self: &Arc<Self>,
        _primals: &[Array],
        cotangents: &[Array],
        _argnums: &[usize],
        _outputs: &[Array],
    ) -> Result<Vec<Array>> {
        let reversed = cotangents[0].flip(..)?;
        let sums = kernel::apply_shared(self, &[&reversed])?;
        Ok(vec![sums[0].flip(..)?])
    }
}

fn decay(x: &Array) -> Result<Array> {
    Ok(kernel::apply(Decay(0.5), &[x])?.remove(0))
}

fn main() -> Result<()> {
    let x = Array::from_slice(&[1.0f32, 0.0, 0.0, 4.0], &[4])?;
    println!("decay: {}", decay(&x)?);

    let loss = |x: &[Array]| Ok(vec![decay(&x[0])?.sum(.., false)?]);
    println!(
        "gradient: {}",
        grad(loss, std::slice::from_ref(&x), &[0])?[0]
    );

    let rows = Array::from_slice(&[1.0f32, 1.0, 0.0, 2.0], &[2, 2])?;
    let each = vmap(
        |x: &[Array]| Ok(vec![decay(&x[0])?]),
        &[rows],
        &[Some(0)],
        &[Some(0)],
    )?;
    println!("rows: {}", each[0]);

    println!("refused: {}", decay(&x.astype(DType::I32)?).unwrap_err());
    Ok(())
}
