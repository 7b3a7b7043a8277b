//! Kernels in Rust.

use std::ffi::c_void;
use std::sync::Arc;

use mlx_c_sys as sys;

use super::callbacks::{self, Payload};
use super::view::{Spec, View, ViewMut};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi;
use crate::linalg::on_cpu;
use crate::ops::shape::stack;
use crate::{memory, poison, stream};

/// An operation that runs on the CPU, written in Rust.
///
/// [`apply`] puts it into the lazy graph. It works under evaluation, `compile` and, with a
/// [`vjp`](Self::vjp), under derivatives. `vmap` needs no code of the kernel.
///
/// ```
/// use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut};
/// use mlx_core::{Array, DType, Result};
///
/// struct Scale(f32);
///
/// impl CpuKernel for Scale {
///     fn name(&self) -> &'static str {
///         "scale"
///     }
///     fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
///         Ok(vec![Spec::new(&inputs[0].shape, DType::F32)])
///     }
///     fn eval(&self, inputs: &[View], outputs: &mut [ViewMut]) -> Result<(), String> {
///         let x = inputs[0].as_slice::<f32>()?;
///         for (y, x) in outputs[0].as_mut_slice::<f32>()?.iter_mut().zip(x) {
///             *y = self.0 * x;
///         }
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// let y = kernel::apply(Scale(3.0), &[&x])?;
/// assert_eq!(y[0].to_vec::<f32>()?, [3.0, 6.0]);
/// # Ok(())
/// # }
/// ```
pub trait CpuKernel: Send + Sync + Sized + 'static {
    /// The name of this kernel in errors.
    fn name(&self) -> &'static str;

    /// Shapes and dtypes of the outputs (at least one) for inputs like these.
    ///
    /// # Errors
    /// The kernel does not support such inputs; the message should say which it supports.
    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>>;

    /// Computes the outputs, which are zero at first.
    ///
    /// Runs on the thread of a stream, possibly on several at once for different arrays. It may use
    /// its own threads, and must not use arrays.
    ///
    /// # Errors
    /// The message becomes the error of the evaluation. So does the message of a panic.
    fn eval(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String>;

    /// The derivatives with respect to the inputs that `argnums` names, from `cotangents`, one for each output. The
    /// derivative may use the same kernel, by [`apply_shared`].
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) unless implemented.
    fn vjp(
        self: &Arc<Self>,
        primals: &[Array],
        cotangents: &[Array],
        argnums: &[usize],
        outputs: &[Array],
    ) -> Result<Vec<Array>> {
        let _ = (primals, cotangents, argnums, outputs);
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("kernel {} has no vjp", self.name()),
        ))
    }

    /// The outputs for inputs that may have an additional axis (an entry of `axes`, or `None`), and the position of
    /// that axis in each output. Unless implemented, the kernel is applied to each slice.
    ///
    /// # Errors
    /// Those of the kernel's other functions.
    fn vmap(
        self: &Arc<Self>,
        inputs: &[Array],
        axes: &[Option<i32>],
    ) -> Result<(Vec<Array>, Vec<Option<i32>>)> {
        map_slices(self, inputs, axes)
    }

    /// Whether `other` computes the same, so that two nodes with the same inputs become one.
    fn equivalent(&self, other: &Self) -> bool {
        let _ = other;
        false
    }

    /// The input that output 0 overwrites: of the same shape and dtype. Output 0 then begins with
    /// that input's elements instead of zeros (without a copy when nothing else needs them), and
    /// the input itself cannot be read.
    fn donate_input(&self) -> Option<usize> {
        None
    }
}

/// The outputs of `kernel` for `inputs`, to be computed when they are evaluated. They are computed on the current stream
/// if that is on the CPU, and otherwise on the thread's default stream of the CPU.
///
/// ```
/// use mlx_core::{Array, Result, kernel::{self, CpuKernel, Spec, View, ViewMut}};
///
/// # fn main() -> mlx_core::Result<()> {
/// struct Next;
///
/// impl CpuKernel for Next {
///     fn name(&self) -> &'static str {
///         "next"
///     }
///     fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
///         Ok(vec![inputs[0].clone()])
///     }
///     fn eval(&self, inputs: &[View], outputs: &mut [ViewMut]) -> Result<(), String> {
///         let x = inputs[0].as_slice::<i32>()?;
///         let y = outputs[0].as_mut_slice::<i32>()?;
///         y.iter_mut().zip(x).for_each(|(y, x)| *y = x + 1);
///         Ok(())
///     }
/// }
///
/// let x = Array::from_slice(&[1, 2], &[2])?;
/// assert_eq!(kernel::apply(Next, &[&x])?[0].to_vec::<i32>()?, [2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The kernel does not support such inputs.
pub fn apply<K: CpuKernel>(kernel: K, inputs: &[&Array]) -> Result<Vec<Array>> {
    apply_shared(&Arc::new(kernel), inputs)
}

/// [`apply`] for a kernel that is used more than once, as in its own derivative.
///
/// # Errors
/// The same as those of [`apply`].
pub fn apply_shared<K: CpuKernel>(kernel: &Arc<K>, inputs: &[&Array]) -> Result<Vec<Array>> {
    let specs: Vec<Spec> = inputs
        .iter()
        .map(|input| Spec::new(input.shape(), input.dtype()))
        .collect();
    let outputs = kernel
        .output(&specs)
        .map_err(|error| error.context(format!("kernel {}", kernel.name())))?;
    let donate = kernel.donate_input();
    check(kernel.name(), &specs, &outputs, donate)?;
    inputs.iter().try_for_each(|input| poison::check(input))?;

    let table = callbacks::table::<K>(kernel.name(), donate)?;
    let handles: Vec<_> = inputs.iter().map(|input| input.raw()).collect();
    let shapes: Vec<*const i32> = outputs.iter().map(|spec| spec.shape.as_ptr()).collect();
    let ndims: Vec<usize> = outputs.iter().map(|spec| spec.shape.len()).collect();
    let dtypes: Vec<_> = outputs.iter().map(|spec| spec.dtype.raw()).collect();
    let node = Payload {
        kernel: kernel.clone(),
        outputs: outputs.len(),
        donate,
    };
    on_cpu(|| {
        let stream = stream::current()?;
        let payload = Box::into_raw(Box::new(node)).cast::<c_void>();
        ffi::arrays(|res| {
            // SAFETY: live handles and slices with their lengths; the table lives for ever and is
            // made for payloads of this type, which C++ takes over in every case.
            unsafe {
                sys::mlxrs_kernel_apply(
                    res,
                    table,
                    payload,
                    handles.as_ptr(),
                    handles.len(),
                    shapes.as_ptr(),
                    ndims.as_ptr(),
                    dtypes.as_ptr(),
                    outputs.len(),
                    stream,
                )
            }
        })
    })
}

/// The number of live nodes of CPU kernels in this process, for tests of leaks.
pub fn live() -> usize {
    // SAFETY: reads a counter.
    unsafe { sys::mlxrs_kernel_live() }
}

fn check(name: &str, inputs: &[Spec], outputs: &[Spec], donate: Option<usize>) -> Result<()> {
    if outputs.is_empty() {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("kernel {name} has no outputs"),
        ));
    }
    for output in outputs {
        memory::check_shape(&output.shape, output.dtype)
            .map_err(|error| error.context(format!("kernel {name}")))?;
    }
    match donate {
        None => Ok(()),
        Some(index) if inputs.get(index) == Some(&outputs[0]) => Ok(()),
        Some(index) => {
            let message = format!(
                "kernel {name} donates input {index}, which must be like output 0: found {:?} and {:?}",
                inputs.get(index),
                outputs[0]
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

/// The default `vmap` of a kernel: applies it to each slice and stacks the results.
fn map_slices<K: CpuKernel>(
    kernel: &Arc<K>,
    inputs: &[Array],
    axes: &[Option<i32>],
) -> Result<(Vec<Array>, Vec<Option<i32>>)> {
    let mapped = inputs
        .iter()
        .zip(axes)
        .find_map(|(input, axis)| axis.map(|axis| input.dim(axis)));
    let size = mapped.transpose()?.unwrap_or(0);
    if size == 0 {
        let message = format!(
            "kernel {} cannot be mapped over an axis of size 0",
            kernel.name()
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let mut columns: Vec<Vec<Array>> = Vec::new();
    for row in 0..size {
        let slices = inputs
            .iter()
            .zip(axes)
            .map(|(input, axis)| match *axis {
                Some(axis) => input.slice_axis(axis, row, row + 1)?.squeeze(axis),
                None => Ok(input.clone()),
            })
            .collect::<Result<Vec<_>>>()?;
        let outputs = apply_shared(kernel, &slices.iter().collect::<Vec<_>>())?;
        columns.resize_with(outputs.len(), Vec::new);
        columns
            .iter_mut()
            .zip(outputs)
            .for_each(|(column, output)| column.push(output));
    }
    let outputs = columns
        .iter()
        .map(|column| stack(column, 0))
        .collect::<Result<Vec<_>>>()?;
    let axes = vec![Some(0); outputs.len()];
    Ok((outputs, axes))
}
