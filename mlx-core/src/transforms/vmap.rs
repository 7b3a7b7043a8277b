//! Vectorisation over an axis.

use std::cell::Cell;

use mlx_c_sys as sys;

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::closure;
use crate::ffi::vector::VectorArray;
use crate::ffi::{self, Arg};

/// `f` applied to every slice of `inputs` along their mapped axes, in one graph.
///
/// `in_axes` has one entry an input: the axis to map over (from the end if negative), or `None` for
/// an input that every call sees whole. `f` runs once, on inputs without their mapped axes; it
/// cannot read values. `out_axes` has one entry an output: where the mapped axis goes, or `None`
/// for an output that depends on no mapped input.
///
/// # Errors
/// `f` fails, evaluates or reads an array; axes are out of range, of different sizes, of size 0 (MLX's random numbers
/// divide by it), or all `None`; an output with `None` depends on a mapped input; or an operation has no vectorised form.
pub fn vmap_with<F>(
    f: F,
    inputs: &[Array],
    in_axes: &[Option<i32>],
    out_axes: &[Option<i32>],
) -> Result<Vec<Array>>
where
    F: FnMut(&[Array]) -> Result<Vec<Array>>,
{
    mapped(f, inputs, in_axes, |_| out_axes.to_vec())
}

thread_local! {
    /// The number of `vmap` functions that run on this thread, one within the other.
    static MAPPING: Cell<usize> = const { Cell::new(0) };
}

/// Exists while the function of a `vmap` runs.
struct Mapping;

impl Mapping {
    fn begin() -> Self {
        MAPPING.set(MAPPING.get() + 1);
        Self
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        MAPPING.set(MAPPING.get() - 1);
    }
}

/// Whether the function of a `vmap` is running on this thread.
pub(crate) fn is_mapping() -> bool {
    MAPPING.get() > 0
}

/// As [`vmap_with`]; `out_axes` gets the number of outputs.
pub(super) fn mapped<F>(
    mut f: F,
    inputs: &[Array],
    in_axes: &[Option<i32>],
    out_axes: impl FnOnce(usize) -> Vec<Option<i32>>,
) -> Result<Vec<Array>>
where
    F: FnMut(&[Array]) -> Result<Vec<Array>>,
{
    check_mapped(inputs, in_axes)?;
    let mapped: Vec<i32> = inputs
        .iter()
        .zip(in_axes)
        .map(|(input, axis)| axis.map_or(Ok(-1), |axis| normal(axis, input.ndim())))
        .collect::<Result<_>>()?;

    let inputs = VectorArray::new(inputs)?;
    let mut f = |arrays: &[Array]| {
        let _mapping = Mapping::begin();
        f(arrays)
    };
    let (trace_inputs, trace_outputs) = closure::lend(&mut f, |closure| {
        let (mut trace_inputs, mut trace_outputs) = (VectorArray::null(), VectorArray::null());
        ffi::call(ErrorKind::Mlx, || {
            // SAFETY: live handles, a slice with its length, fresh out-handles.
            unsafe {
                sys::mlx_detail_vmap_trace(
                    trace_inputs.as_mut_ptr(),
                    trace_outputs.as_mut_ptr(),
                    closure.raw(),
                    inputs.c(),
                    mapped.as_ptr(),
                    mapped.len(),
                )
            }
        })?;
        Ok((trace_inputs, trace_outputs))
    })?;

    let traces = trace_outputs.to_vec()?;
    let out_axes = out_axes(traces.len());
    if traces.len() != out_axes.len() {
        let message = format!(
            "vmap got {} out_axes for {} outputs",
            out_axes.len(),
            traces.len()
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    // -1 makes MLX refuse an output that depends on a mapped input.
    let placed: Vec<i32> = traces
        .iter()
        .zip(&out_axes)
        .map(|(trace, axis)| axis.map_or(Ok(-1), |axis| normal(axis, trace.ndim() + 1)))
        .collect::<Result<_>>()?;
    let outputs = ffi::arrays(|res| {
        // SAFETY: live handles, slices with their lengths, a fresh out-handle.
        unsafe {
            sys::mlx_detail_vmap_replace(
                res,
                inputs.c(),
                trace_inputs.c(),
                trace_outputs.c(),
                mapped.as_ptr(),
                mapped.len(),
                placed.as_ptr(),
                placed.len(),
            )
        }
    });
    let outputs = outputs.map_err(|error| {
        if !error.to_string().contains("Axis -1 invalid") {
            return error;
        }
        let message = "an output of vmap depends on a mapped input, but has no out axis";
        Error::new(ErrorKind::Invalid, message)
    })?;
    // An output without an out axis is the traced output itself, because MLX would repeat it along an axis.
    let chosen = outputs.into_iter().zip(traces).zip(&out_axes);
    Ok(chosen
        .map(|((output, trace), axis)| if axis.is_some() { output } else { trace })
        .collect())
}

/// All mapped axes, of which there is one at least, must have the same size.
fn check_mapped(inputs: &[Array], in_axes: &[Option<i32>]) -> Result<()> {
    if inputs.len() != in_axes.len() {
        let message = format!(
            "vmap got {} in_axes for {} inputs",
            in_axes.len(),
            inputs.len()
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let mut found = None;
    for (index, (input, axis)) in inputs.iter().zip(in_axes).enumerate() {
        let Some(axis) = axis else { continue };
        let size = input
            .dim(*axis)
            .map_err(|error| error.context(format!("vmap input {index}")))?;
        if size == 0 {
            let message =
                format!("vmap cannot map over axis {axis} of input {index}, which has size 0");
            return Err(Error::new(ErrorKind::Shape, message));
        }
        match found {
            Some((first, other)) if other != size => {
                let message = format!(
                    "vmap maps {other} slices of input {first} but {size} of input {index}"
                );
                return Err(Error::new(ErrorKind::Shape, message));
            }
            _ => found = Some((index, size)),
        }
    }
    if found.is_none() {
        let message = "vmap needs at least one mapped input, found none in in_axes";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

fn normal(axis: i32, ndim: usize) -> Result<i32> {
    let ndim = ndim as i32;
    if (-ndim..ndim).contains(&axis) {
        return Ok(if axis < 0 { axis + ndim } else { axis });
    }
    let message = format!("axis {axis} is out of range for {ndim} dimensions");
    Err(Error::new(ErrorKind::Invalid, message))
}
