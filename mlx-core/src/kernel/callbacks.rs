//! The C side of [`CpuKernel`]: one table of callbacks for each kernel type.

use std::any::TypeId;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use mlx_c_sys as sys;

use super::cpu::CpuKernel;
use super::view::{Spec, View, ViewMut};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::closure::{answer, guarded};
use crate::ffi::{self, vector};
use crate::transforms::check_derivatives;

/// The payload of a node.
pub(super) struct Payload<K> {
    pub(super) kernel: Arc<K>,
    // Fixed when the node is made, so that a later change of what `K` returns has no effect.
    pub(super) outputs: usize,
    pub(super) donate: Option<usize>,
}

/// The C table of kernels of type `K`. Tables live for ever; there is one for each type and name.
pub(super) fn table<K: CpuKernel>(
    name: &'static str,
    donate: Option<usize>,
) -> Result<*const sys::mlxrs_kernel_vtable> {
    struct Table(sys::mlxrs_kernel_vtable);
    // SAFETY: function pointers and a leaked string, never written again.
    unsafe impl Send for Table {}
    // SAFETY: as above.
    unsafe impl Sync for Table {}
    type Tables = HashMap<(TypeId, &'static str, Option<usize>), &'static Table>;
    static TABLES: Mutex<Option<Tables>> = Mutex::new(None);

    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let tables = tables.get_or_insert_default();
    let key = (TypeId::of::<K>(), name, donate);
    if let Some(table) = tables.get(&key) {
        return Ok(&table.0);
    }
    let text: CString = ffi::cstring(name)?;
    let table = Box::leak(Box::new(Table(sys::mlxrs_kernel_vtable {
        name: text.into_raw(),
        eval: Some(eval::<K>),
        vjp: Some(vjp::<K>),
        vmap: Some(vmap::<K>),
        output_shape: Some(output_shape::<K>),
        equivalent: Some(equivalent::<K>),
        drop: Some(release::<K>),
        donate_input: donate.map_or(-1, |index| index as c_int),
    })));
    tables.insert(key, table);
    Ok(&table.0)
}

/// # Safety
/// `payload` must be a node of kernel type `K` that C++ holds.
unsafe fn borrow<'a, K>(payload: *const c_void) -> &'a Payload<K> {
    // SAFETY: the caller's promise; the reference is used within one callback.
    unsafe { &*payload.cast::<Payload<K>>() }
}

unsafe extern "C" fn eval<K: CpuKernel>(
    payload: *const c_void,
    inputs: *const sys::mlxrs_view,
    n_inputs: usize,
    outputs: *const sys::mlxrs_view,
    n_outputs: usize,
    text: *mut c_char,
    room: usize,
) -> c_int {
    let run = || -> Result<(), String> {
        // SAFETY: C++ passes the payload of this table, and views with their number.
        let (node, inputs, outputs) = unsafe {
            (
                borrow::<K>(payload),
                slice(inputs, n_inputs),
                slice(outputs, n_outputs),
            )
        };
        run_eval(node, inputs, outputs)
    };
    let message = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return 0,
        Ok(Err(message)) => message,
        Err(panic) => {
            let message = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            // Dropping the payload of a panic may panic again, and a panic must not unwind into C++.
            std::mem::forget(panic);
            format!(
                "panicked: {}",
                message
                    .as_deref()
                    .unwrap_or("with a value that is not text")
            )
        }
    };
    let bytes: Vec<u8> = message
        .bytes()
        .filter(|&byte| byte != 0)
        .take(room.saturating_sub(1))
        .collect();
    // SAFETY: `text` has `room` bytes, of which at most `room` are written.
    unsafe {
        if room > 0 {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), text.cast(), bytes.len());
            *text.add(bytes.len()) = 0;
        }
    }
    1
}

/// # Safety
/// `views` must point to `len` live views.
unsafe fn slice<'a>(views: *const sys::mlxrs_view, len: usize) -> &'a [sys::mlxrs_view] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(views, len) }
}

fn run_eval<K: CpuKernel>(
    node: &Payload<K>,
    inputs: &[sys::mlxrs_view],
    outputs: &[sys::mlxrs_view],
) -> Result<(), String> {
    for (index, output) in outputs.iter().enumerate() {
        let bytes = bytes(output)?;
        let source = node
            .donate
            .filter(|_| index == 0)
            .and_then(|index| inputs.get(index));
        if let Some(source) = source {
            // A replay of a shapeless graph may have other shapes than `apply` saw.
            if self::bytes(source)? != bytes {
                return Err("donated input and output 0 differ in size".into());
            }
        }
        // SAFETY: only this task writes the outputs. A donated input is as large as output 0, and is the same memory or
        // does not overlap it.
        unsafe {
            match source {
                _ if bytes == 0 => {}
                Some(source) if source.data == output.data => {}
                Some(source) => {
                    std::ptr::copy_nonoverlapping(
                        source.data.cast::<u8>(),
                        output.data.cast(),
                        bytes,
                    );
                }
                None => std::ptr::write_bytes(output.data.cast::<u8>(), 0, bytes),
            }
        }
    }
    let unknown = || "operand of unknown dtype".to_owned();
    let inputs = inputs
        .iter()
        .enumerate()
        .map(|(index, view)| {
            // SAFETY: C++ lends dense live operands; the donated one is marked.
            unsafe { View::new(view, node.donate == Some(index)) }.ok_or_else(unknown)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut outputs = outputs
        .iter()
        // SAFETY: as above; initialised just now, and in no other view that can be read.
        .map(|view| unsafe { ViewMut::new(view) }.ok_or_else(unknown))
        .collect::<Result<Vec<_>, _>>()?;
    node.kernel.eval(&inputs, &mut outputs)
}

fn bytes(view: &sys::mlxrs_view) -> Result<usize, String> {
    let dtype = DType::from_raw(view.dtype).ok_or("operand of unknown dtype")?;
    Ok(view.size * dtype.size())
}

unsafe extern "C" fn vjp<K: CpuKernel>(
    payload: *const c_void,
    res: *mut sys::mlx_vector_array,
    primals: sys::mlx_vector_array,
    cotangents: sys::mlx_vector_array,
    argnums: *const c_int,
    n_argnums: usize,
    outputs: sys::mlx_vector_array,
) -> c_int {
    let run = || {
        // SAFETY: C++ passes the payload of this table and lends the vectors and numbers.
        let (node, primals, cotangents, argnums, outputs) = unsafe {
            let argnums: &[c_int] = if n_argnums == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(argnums, n_argnums)
            };
            (
                borrow::<K>(payload),
                vector::read(primals)?,
                vector::read(cotangents)?,
                argnums
                    .iter()
                    .map(|&number| number as usize)
                    .collect::<Vec<_>>(),
                vector::read(outputs)?,
            )
        };
        let kernel = &node.kernel;
        let derivatives = kernel.vjp(&primals, &cotangents, &argnums, &outputs)?;
        let wanted: Vec<&Array> = argnums.iter().map(|&number| &primals[number]).collect();
        check_derivatives(&format!("kernel {}", kernel.name()), wanted, &derivatives)?;
        Ok(derivatives)
    };
    // SAFETY: C++ passes `res` to be filled.
    unsafe { answer(res, run) }
}

unsafe extern "C" fn vmap<K: CpuKernel>(
    payload: *const c_void,
    res: *mut sys::mlx_vector_array,
    out_axes: *mut c_int,
    inputs: sys::mlx_vector_array,
    axes: *const c_int,
) -> c_int {
    let run = || {
        // SAFETY: C++ passes the payload of this table and lends the inputs, with an axis for each.
        let (node, inputs, axes) = unsafe {
            let inputs = vector::read(inputs)?;
            let axes: Vec<Option<i32>> = (0..inputs.len())
                .map(|index| Some(*axes.add(index)).filter(|&axis| axis >= 0))
                .collect();
            (borrow::<K>(payload), inputs, axes)
        };
        let kernel = &node.kernel;
        let (outputs, axes) = kernel.vmap(&inputs, &axes)?;
        check_mapped(kernel.name(), node.outputs, &outputs, &axes)?;
        for (index, axis) in axes.iter().enumerate() {
            // SAFETY: there is room for one axis an output of the node, which is as many as there
            // are (checked above).
            unsafe { *out_axes.add(index) = axis.unwrap_or(-1) };
        }
        Ok(outputs)
    };
    // SAFETY: C++ passes `res` to be filled.
    unsafe { answer(res, run) }
}

fn check_mapped(
    name: &str,
    expected: usize,
    outputs: &[Array],
    axes: &[Option<i32>],
) -> Result<()> {
    let wrong = |what: String| {
        Err(Error::new(
            ErrorKind::Invalid,
            format!("the vmap of kernel {name} returned {what}"),
        ))
    };
    if outputs.len() != expected || axes.len() != expected {
        return wrong(format!(
            "{} outputs and {} axes, expected {expected}",
            outputs.len(),
            axes.len()
        ));
    }
    for (index, (output, axis)) in outputs.iter().zip(axes).enumerate() {
        if axis.is_some_and(|axis| axis < 0 || axis as usize >= output.ndim()) {
            return wrong(format!(
                "axis {axis:?} for output {index} of shape {:?}",
                output.shape()
            ));
        }
    }
    Ok(())
}

unsafe extern "C" fn output_shape<K: CpuKernel>(
    payload: *const c_void,
    index: usize,
    inputs: *const sys::mlxrs_view,
    n_inputs: usize,
    shape: *mut i32,
    ndim: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: C++ passes the payload of this table, and views with their number.
        let (node, inputs) = unsafe { (borrow::<K>(payload), slice(inputs, n_inputs)) };
        let kernel = &node.kernel;
        let inputs = inputs
            .iter()
            .map(|view| {
                // SAFETY: views with shapes; their data is not touched.
                unsafe { View::new(view, true) }.map(|view| Spec::new(view.shape(), view.dtype()))
            })
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| Error::new(ErrorKind::DType, "operand of unknown dtype"))?;
        let outputs = kernel.output(&inputs)?;
        let Some(output) = outputs
            .get(index)
            .filter(|output| output.shape.len() <= sys::MLXRS_MAX_NDIM as usize)
        else {
            let message = format!(
                "kernel {} has no shape for output {index}: {outputs:?}",
                kernel.name()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        // SAFETY: there is room for `MLXRS_MAX_NDIM` sizes.
        unsafe {
            std::ptr::copy_nonoverlapping(output.shape.as_ptr(), shape, output.shape.len());
            *ndim = output.shape.len();
        }
        Ok(())
    })
}

unsafe extern "C" fn equivalent<K: CpuKernel>(a: *const c_void, b: *const c_void) -> bool {
    // SAFETY: C++ compares payloads of this table only.
    let (a, b) = unsafe { (borrow::<K>(a), borrow::<K>(b)) };
    // A panic cannot be reported here. Nodes that cannot be compared count as different.
    catch_unwind(AssertUnwindSafe(|| a.kernel.equivalent(&b.kernel))).unwrap_or_else(|panic| {
        std::mem::forget(panic);
        false
    })
}

unsafe extern "C" fn release<K: CpuKernel>(payload: *mut c_void) {
    // SAFETY: the box that `apply` gave to C++, returned once.
    let node = unsafe { Box::from_raw(payload.cast::<Payload<K>>()) };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(node))) {
        std::mem::forget(panic);
    }
}
