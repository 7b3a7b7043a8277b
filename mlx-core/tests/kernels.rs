//! User-defined kernels: in lazy graphs, under every transform, and when they fail.

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut, apply_shared};
use mlx_core::transforms::{Compiled, compile, grad_with, vjp_with, vmap_with};
use mlx_core::{Array, DType, Error, ErrorKind, Result, async_eval, eval};
use rayon::prelude::*;

fn row(values: &[f32]) -> Array {
    Array::from_slice(values, &[values.len() as i32]).unwrap()
}

/// factor · x^power, elementwise, on several threads; counts its runs.
struct Power {
    factor: f32,
    power: i32,
    runs: Arc<AtomicUsize>,
}

impl Power {
    fn new(factor: f32, power: i32) -> Self {
        Self {
            factor,
            power,
            runs: Arc::default(),
        }
    }
}

impl CpuKernel for Power {
    fn name(&self) -> &'static str {
        "power"
    }

    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match inputs {
            [x] if x.dtype == DType::F32 => Ok(vec![x.clone()]),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("expected one F32 input, found {inputs:?}"),
            )),
        }
    }

    fn eval(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let x = inputs[0].as_slice::<f32>()?;
        let y = outputs[0].as_mut_slice::<f32>()?;
        y.par_iter_mut()
            .zip(x)
            .for_each(|(y, x)| *y = self.factor * x.powi(self.power));
        Ok(())
    }

    fn vjp(
        self: &Arc<Self>,
        primals: &[Array],
        cotangents: &[Array],
        argnums: &[usize],
        _outputs: &[Array],
    ) -> Result<Vec<Array>> {
        assert_eq!(argnums, [0]);
        let slope = Power::new(self.factor * self.power as f32, self.power - 1);
        Ok(vec![
            kernel::apply(slope, &[&primals[0]])?[0].multiply(&cotangents[0])?,
        ])
    }

    fn equivalent(&self, other: &Self) -> bool {
        (self.factor, self.power) == (other.factor, other.power)
    }
}

/// Sum and difference: two inputs, two outputs, no derivative.
struct Both;

impl CpuKernel for Both {
    fn name(&self) -> &'static str {
        "both"
    }
    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone(), inputs[0].clone()])
    }
    fn eval(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let (a, b) = (inputs[0].as_slice::<i32>()?, inputs[1].as_slice::<i32>()?);
        for (out, sign) in outputs.iter_mut().zip([1, -1]) {
            for ((out, a), b) in out.as_mut_slice::<i32>()?.iter_mut().zip(a).zip(b) {
                *out = a + sign * b;
            }
        }
        Ok(())
    }
}

/// Fails in the way of its variant.
enum Failing {
    Error,
    Panic,
    WrongType,
}

impl CpuKernel for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }
    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }
    fn eval(&self, inputs: &[View<'_>], _outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        match self {
            Failing::Error => Err("out of luck: 100%s%n".into()),
            // Without the panic's message, which would appear in every log.
            Failing::Panic => {
                std::panic::resume_unwind(Box::new(format!("lost {} things", inputs.len())))
            }
            Failing::WrongType => inputs[0].as_slice::<u8>().map(drop),
        }
    }
}

/// Adds one, in the buffer of its input.
struct Increment;

impl CpuKernel for Increment {
    fn name(&self) -> &'static str {
        "increment"
    }
    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }
    fn eval(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        if inputs[0].as_slice::<f32>().is_ok() {
            return Err("a donated input can be read".into());
        }
        outputs[0]
            .as_mut_slice::<f32>()?
            .iter_mut()
            .for_each(|x| *x += 1.0);
        Ok(())
    }
    fn donate_input(&self) -> Option<usize> {
        Some(0)
    }
}

#[test]
fn kernels_are_lazy_nodes_of_a_mixed_graph() -> Result<()> {
    let kernel = Power::new(2.0, 2);
    let runs = kernel.runs.clone();
    let x = row(&[1.0, 2.0, 3.0]).add(1.0)?;
    let y = kernel::apply(kernel, &[&x])?.remove(0).add(0.5)?;
    assert_eq!(runs.load(Ordering::Relaxed), 0);
    async_eval([&y])?;
    assert_eq!(y.to_vec::<f32>()?, [8.5, 18.5, 32.5]);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    Ok(())
}

#[test]
fn several_operands_and_views() -> Result<()> {
    let a = Array::from_slice(&[1i32, 2, 3, 4, 5, 6], &[2, 3])?.transpose(&[1, 0])?;
    let b = Array::scalar(10i32)?.broadcast_to(&[3, 2])?;
    let out = kernel::apply(Both, &[&a, &b])?;
    assert_eq!(out[0].shape(), [3, 2]);
    assert_eq!(out[0].to_vec::<i32>()?, [11, 14, 12, 15, 13, 16]);
    assert_eq!(out[1].to_vec::<i32>()?, [-9, -6, -8, -5, -7, -4]);
    // Only the second output.
    let twin = kernel::apply(Both, &[&a, &a])?;
    assert_eq!(twin[1].sum(.., false)?.item::<i32>()?, 0);
    // Scalars, and arrays without elements.
    let one = Array::scalar(1i32)?;
    assert_eq!(kernel::apply(Both, &[&one, &one])?[0].item::<i32>()?, 2);
    let none = mlx_core::zeros(&[0, 3], DType::I32)?;
    assert!(
        kernel::apply(Both, &[&none, &none])?[0]
            .to_vec::<i32>()?
            .is_empty()
    );
    Ok(())
}

#[test]
fn bad_inputs_are_refused_by_name() -> Result<()> {
    let error = kernel::apply(Power::new(1.0, 1), &[&Array::scalar(1i32)?]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("kernel power: expected one F32 input"),
        "{error}"
    );
    let before = kernel::live();
    assert!(kernel::apply(Power::new(1.0, 1), &[]).is_err());
    assert_eq!(kernel::live(), before);
    Ok(())
}

#[test]
fn derivatives() -> Result<()> {
    let x = row(&[1.0, 2.0]);
    let f = |x: &[Array]| {
        Ok(vec![
            kernel::apply(Power::new(2.0, 3), &[&x[0]])?[0].sum(.., false)?,
        ])
    };
    // 2x³: 6x², 12x.
    assert_eq!(
        grad_with(f, from_ref(&x), &[0])?[0].to_vec::<f32>()?,
        [6.0, 24.0]
    );
    let slope = |x: &[Array]| Ok(vec![grad_with(f, x, &[0])?[0].sum(.., false)?]);
    assert_eq!(
        grad_with(slope, &[x], &[0])?[0].to_vec::<f32>()?,
        [12.0, 24.0]
    );

    let a = Array::from_slice(&[1.0f32], &[1])?.astype(DType::I32)?;
    let none = vjp_with(
        |x| kernel::apply(Both, &[&x[0], &x[0]]),
        from_ref(&a),
        &[a.clone(), a.clone()],
    )
    .unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Unsupported);
    assert_eq!(none.to_string(), "kernel both has no vjp");
    Ok(())
}

#[test]
fn vmap_applies_to_each_slice() -> Result<()> {
    let a = Array::from_slice(&[1i32, 2, 3, 4, 5, 6], &[2, 3])?;
    let b = Array::from_slice(&[10i32, 20], &[2])?;
    let f = |x: &[Array]| kernel::apply(Both, &[&x[0], &x[1]]);
    let out = vmap_with(f, &[a, b], &[Some(1), None], &[Some(0), Some(1)])?;
    assert_eq!(out[0].shape(), [3, 2]);
    assert_eq!(out[0].to_vec::<i32>()?, [11, 24, 12, 25, 13, 26]);
    assert_eq!(out[1].shape(), [2, 3]);
    assert_eq!(out[1].to_vec::<i32>()?, [-9, -8, -7, -16, -15, -14]);

    // grad of vmap, and vmap of grad: 2x³ again.
    let xs = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    let f = |x: &[Array]| kernel::apply(Power::new(2.0, 3), &[&x[0]]);
    let sum = |x: &[Array]| {
        Ok(vec![
            vmap_with(f, x, &[Some(0)], &[Some(0)])?[0].sum(.., false)?,
        ])
    };
    assert_eq!(
        grad_with(sum, from_ref(&xs), &[0])?[0].to_vec::<f32>()?,
        [6.0, 24.0, 54.0, 96.0]
    );
    let one = |x: &[Array]| Ok(vec![f(x)?[0].sum(.., false)?]);
    let each = vmap_with(|x| grad_with(one, x, &[0]), &[xs], &[Some(0)], &[Some(0)])?;
    assert_eq!(each[0].to_vec::<f32>()?, [6.0, 24.0, 54.0, 96.0]);

    let empty = mlx_core::zeros(&[0, 2], DType::F32)?;
    let error = vmap_with(f, &[empty], &[Some(0)], &[Some(0)]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("axis 0 of input 0, which has size 0"),
        "{error}"
    );
    Ok(())
}

#[test]
fn compiled_graphs_keep_kernels_apart_and_merge_equal_ones() -> Result<()> {
    compile::set_enabled(true);
    for shapeless in [false, true] {
        let shared = Arc::new(Power::new(2.0, 2));
        let equal = Power::new(2.0, 2);
        let other = Power::new(3.0, 2);
        let counts = [shared.runs.clone(), equal.runs.clone(), other.runs.clone()];
        let (equal, other) = (Arc::new(equal), Arc::new(other));
        let f = Compiled::new(
            move |x: &[Array]| {
                let mut sum = apply_shared(&shared, &[&x[0]])?.remove(0);
                for kernel in [&shared, &equal, &other] {
                    sum = sum.add(&apply_shared(kernel, &[&x[0]])?[0])?;
                }
                Ok(vec![sum])
            },
            shapeless,
        );
        // Three times 2x², and 3x².
        assert_eq!(
            f.call(&[row(&[1.0, 2.0])])?[0].to_vec::<f32>()?,
            [9.0, 36.0]
        );
        let runs: Vec<usize> = counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        assert_eq!(runs[0] + runs[1], 1, "equal kernels run once");
        assert_eq!(runs[2], 1, "another one by itself");
        assert_eq!(f.call(&[row(&[3.0])])?[0].to_vec::<f32>()?, [81.0]);
    }
    compile::set_enabled(false);
    Ok(())
}

#[test]
fn donated_inputs_become_the_output() -> Result<()> {
    // The input is still needed: a copy.
    let x = row(&[1.0, 2.0]);
    let y = kernel::apply(Increment, &[&x])?.remove(0);
    assert_eq!(y.to_vec::<f32>()?, [2.0, 3.0]);
    assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0]);
    assert_ne!(x.address()?, y.address()?);
    // The input is not needed any more: the same buffer.
    let address = y.address()?;
    let z = kernel::apply(Increment, &[&y])?.remove(0);
    drop(y);
    assert_eq!(z.to_vec::<f32>()?, [3.0, 4.0]);
    assert_eq!(z.address()?, address);
    Ok(())
}

#[test]
fn a_failing_kernel_spoils_its_step_only() -> Result<()> {
    let before = kernel::live();
    for (kernel, expected) in [
        (Failing::Error, "out of luck: 100%s%n"),
        (Failing::Panic, "panicked: lost 1 things"),
        (Failing::WrongType, "operand holds F32, asked for U8"),
    ] {
        let x = row(&[1.0]);
        let broken = kernel::apply(kernel, &[&x])?.remove(0);
        let after = broken.add(1.0)?;
        let error = eval([&after]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Eval);
        assert!(error.to_string().contains(expected), "{error}");
        for spoilt in [&broken, &after] {
            assert_eq!(
                spoilt.to_vec::<f32>().unwrap_err().kind(),
                ErrorKind::Poisoned
            );
            assert_eq!(spoilt.add(1.0).unwrap_err().kind(), ErrorKind::Poisoned);
        }
        assert_eq!(x.add(1.0)?.to_vec::<f32>()?, [2.0]);
        assert_eq!(
            kernel::apply(Power::new(2.0, 2), &[&x])?[0].to_vec::<f32>()?,
            [2.0]
        );
    }
    assert_eq!(kernel::live(), before);
    Ok(())
}

#[test]
fn payloads_are_dropped() -> Result<()> {
    let before = kernel::live();
    let kernel = Arc::new(Power::new(1.0, 1));
    let y = apply_shared(&kernel, &[&row(&[1.0])])?.remove(0);
    assert_eq!(kernel::live(), before + 1);
    assert_eq!(Arc::strong_count(&kernel), 2);
    eval([&y])?;
    mlx_core::synchronize()?;
    assert_eq!(kernel::live(), before);
    assert_eq!(Arc::strong_count(&kernel), 1);
    // It is never run.
    drop(apply_shared(&kernel, &[&row(&[1.0])])?);
    assert_eq!((kernel::live(), Arc::strong_count(&kernel)), (before, 1));
    Ok(())
}
