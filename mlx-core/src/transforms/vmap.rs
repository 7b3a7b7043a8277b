//! Vectorisation over an axis.

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
/// `f` fails, evaluates or reads an array; axes are out of range, of different sizes, or all
/// `None`; an output with `None` depends on a mapped input; or an operation has no vectorised form.
pub fn vmap<F>(
    mut f: F,
    inputs: &[Array],
    in_axes: &[Option<i32>],
    out_axes: &[Option<i32>],
) -> Result<Vec<Array>>
where
    F: FnMut(&[Array]) -> Result<Vec<Array>>,
{
    let size = mapped_size(inputs, in_axes)?;
    let mapped: Vec<i32> = inputs
        .iter()
        .zip(in_axes)
        .map(|(input, axis)| axis.map_or(Ok(-1), |axis| normal(axis, input.ndim())))
        .collect::<Result<_>>()?;

    let inputs = VectorArray::new(inputs)?;
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
    if traces.len() != out_axes.len() {
        let message = format!(
            "vmap got {} out_axes for {} outputs",
            out_axes.len(),
            traces.len()
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let wanted: Vec<Option<i32>> = traces
        .iter()
        .zip(out_axes)
        .map(|(trace, axis)| axis.map(|axis| normal(axis, trace.ndim() + 1)).transpose())
        .collect::<Result<_>>()?;

    // Every mapped output comes back with its axis in front. MLX leaves outputs that depend on no
    // mapped input alone, which the number of dimensions tells.
    let front = vec![0; traces.len()];
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
                front.as_ptr(),
                front.len(),
            )
        }
    })?;
    outputs
        .into_iter()
        .zip(&traces)
        .zip(wanted)
        .enumerate()
        .map(|(index, ((output, trace), wanted))| place(index, output, trace, wanted, size))
        .collect()
}

/// Puts the mapped axis of one output where it is wanted.
fn place(
    index: usize,
    output: Array,
    trace: &Array,
    wanted: Option<i32>,
    size: i32,
) -> Result<Array> {
    let mapped = output.ndim() == trace.ndim() + 1;
    match wanted {
        Some(0) if mapped => Ok(output),
        Some(axis) if mapped => output.move_axis(0, axis),
        Some(axis) => {
            let mut shape = output.shape().to_vec();
            shape.insert(axis as usize, size);
            output.expand_dims(axis)?.broadcast_to(&shape)
        }
        None if mapped => {
            let message =
                format!("vmap output {index} depends on a mapped input, but has no out axis");
            Err(Error::new(ErrorKind::Invalid, message))
        }
        None => Ok(output),
    }
}

/// The size that all mapped axes share.
fn mapped_size(inputs: &[Array], in_axes: &[Option<i32>]) -> Result<i32> {
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
    found.map(|(_, size)| size).ok_or_else(|| {
        Error::new(
            ErrorKind::Invalid,
            "vmap needs at least one mapped input, found none in in_axes",
        )
    })
}

fn normal(axis: i32, ndim: usize) -> Result<i32> {
    let ndim = ndim as i32;
    if (-ndim..ndim).contains(&axis) {
        return Ok(if axis < 0 { axis + ndim } else { axis });
    }
    let message = format!("axis {axis} is out of range for {ndim} dimensions");
    Err(Error::new(ErrorKind::Invalid, message))
}
