//! Arrays with other values at an index.

use super::plan::{Plan, common_shape, fault, plan};
use super::read::{moved, sliced};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{op, vector::VectorArray};
use crate::indexing::IntoIndex;
use crate::ops::{Operand, borrowed};

/// The places of an array that an index names, to be combined with values. [`Array::at`] makes it.
///
/// Each method gives a new array. A place that is named several times is combined with all of its values, unlike
/// in `x.set(index, x.i(index)? + v)`. The values broadcast to the shape of [`x.i(index)`](Array::i), and take the
/// array's dtype: those for an array of integers lose their fractions.
#[derive(Clone, Copy, Debug)]
pub struct At<'a, I> {
    array: &'a Array,
    index: I,
}

/// How values change what is there.
#[derive(Clone, Copy)]
enum Change {
    Set,
    Add,
    Multiply,
    Maximum,
    Minimum,
}

macro_rules! changes {
    ($($(#[$doc:meta])* $name:ident = $change:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// The index does not fit the array, or the values do not broadcast to what it names.
        pub fn $name(&self, values: impl Operand) -> Result<Array> {
            write(c"at", self.array, &self.index, &values, Change::$change)
        }
    )* };
}

impl<'a, I: IntoIndex> At<'a, I> {
    pub(crate) fn new(array: &'a Array, index: I) -> Self {
        Self { array, index }
    }

    changes! {
        /// The array with `values` added at the index.
        add = Add;
        /// The array multiplied with `values` at the index.
        #[doc(alias = "multiply")]
        mul = Multiply;
        /// The array with the larger of each element and value at the index; NaN if either is.
        #[doc(alias = "maximum")]
        max = Maximum;
        /// The array with the smaller of each element and value at the index; NaN if either is.
        #[doc(alias = "minimum")]
        min = Minimum;
    }

    /// The array with `values` subtracted at the index.
    ///
    /// # Errors
    /// Those of [`add`](Self::add); the array is of Bool.
    #[doc(alias = "subtract")]
    pub fn sub(&self, values: impl Operand) -> Result<Array> {
        let values = converted(self.array, &values)?.negative()?;
        write(c"at", self.array, &self.index, &values, Change::Add)
    }

    /// The array divided by `values` at the index: multiplied with their reciprocals, as in Python's MLX.
    ///
    /// # Errors
    /// Those of [`add`](Self::add); the array is of integers or Bool, which have no reciprocals.
    #[doc(alias = "divide")]
    pub fn div(&self, values: impl Operand) -> Result<Array> {
        let dtype = self.array.dtype();
        if !dtype.is_float() && dtype != DType::C64 {
            let message = format!("at: div needs floating point, given an array of {dtype}");
            return Err(Error::new(ErrorKind::DType, message));
        }
        let values = converted(self.array, &values)?.reciprocal()?;
        write(c"at", self.array, &self.index, &values, Change::Multiply)
    }
}

/// Values in the array's dtype.
fn converted(array: &Array, values: &impl Operand) -> Result<Array> {
    let values = values.operand(array)?;
    match values.dtype() == array.dtype() {
        true => Ok(values.into_owned()),
        false => values.astype(array.dtype()),
    }
}

pub(crate) fn set(array: &Array, index: &impl IntoIndex, values: &impl Operand) -> Result<Array> {
    write(c"set", array, index, values, Change::Set)
}

fn write(
    name: &'static std::ffi::CStr,
    array: &Array,
    index: &impl IntoIndex,
    values: &impl Operand,
    change: Change,
) -> Result<Array> {
    let values = converted(array, values)?;
    let plan_of = |lazily| plan(name, array, index.parts()?, lazily);
    let mut plan = plan_of(true)?;
    if let Some(mask) = &plan.mask {
        // Dimensions behind the mask, and the one that stands for it.
        let behind = array.ndim() - plan.place - mask.ndim();
        let uniform = values.ndim() <= behind
            || values.shape()[values.ndim() - behind - 1] == 1
                && values.ndim() <= plan.place + 1 + behind;
        if uniform {
            return masked(name, array, mask, &values, &plan, change);
        }
        plan = plan_of(false)?;
    }
    let values = arranged(name, &values, &plan)?;
    if plan.result.contains(&0) {
        return Ok(array.clone());
    }
    if plan.indices.is_empty() {
        return region(array, &values, &plan, change);
    }
    let part = sliced(array, &plan)?;
    let part = scattered(&part, values, &plan, change)?;
    if plan.whole {
        return Ok(part);
    }
    region(array, &part, &plan, Change::Set)
}

/// The array with `values` where the mask is true. The shape of `values` does not depend on how
/// often that is.
fn masked(
    name: &std::ffi::CStr,
    array: &Array,
    mask: &Array,
    values: &Array,
    plan: &Plan,
    change: Change,
) -> Result<Array> {
    let behind = array.ndim() - plan.place - mask.ndim();
    let mut values = values.clone();
    if values.ndim() > behind {
        // The dimension that stands for the mask becomes all of the mask's.
        let at = (values.ndim() - behind) as i32;
        let news: Vec<i32> = (at..at + mask.ndim() as i32 - 1).collect();
        values = expanded(values, &news)?;
    }
    let fits = common_shape(&[values.shape(), array.shape()]);
    if fits.as_deref() != Some(array.shape()) {
        return Err(unfit(name, values.shape(), array.shape()));
    }
    let news: Vec<i32> = (mask.ndim() as i32..(mask.ndim() + behind) as i32).collect();
    let mask = expanded(mask.clone(), &news)?;
    mask.select(combined(array, &values, change)?, array)
}

fn unfit(name: &std::ffi::CStr, values: &[i32], places: &[i32]) -> Error {
    let message = format!("values of shape {values:?} do not broadcast to {places:?}");
    fault(name, &message)
}

fn expanded(array: Array, axes: &[i32]) -> Result<Array> {
    if axes.is_empty() {
        return Ok(array);
    }
    op!(mlx_expand_dims_axes(array, [axes]))
}

/// `values` in the order of a scatter: the dimensions of the index arrays first, and then one for
/// each dimension of the array. Without dimensions, `values` stay so. Fails if they do not
/// broadcast to the result of the plan.
fn arranged(name: &std::ffi::CStr, values: &Array, plan: &Plan) -> Result<Array> {
    let mut values = values.clone();
    let ndim = plan.result.len();
    // As in NumPy, more dimensions of size 1 may stand in front.
    if let Some(more) = values.ndim().checked_sub(ndim).filter(|more| *more > 0) {
        if values.shape()[..more].iter().any(|&size| size != 1) {
            return Err(unfit(name, values.shape(), &plan.result));
        }
        let axes: Vec<i32> = (0..more as i32).collect();
        values = op!(mlx_squeeze_axes(values, [axes]))?;
    }
    let fits = common_shape(&[values.shape(), &plan.result]);
    if fits.as_deref() != Some(&plan.result) {
        return Err(unfit(name, values.shape(), &plan.result));
    }
    if values.ndim() == 0 {
        return Ok(values);
    }
    let missing: Vec<i32> = (0..(ndim - values.ndim()) as i32).collect();
    values = expanded(values, &missing)?;
    if !plan.news.is_empty() {
        values = op!(mlx_squeeze_axes(values, [plan.news]))?;
    }
    let leading = plan.common.len();
    values = moved(values, plan.place, 0, leading)?;
    let gone: Vec<i32> = plan
        .gone()
        .iter()
        .map(|axis| axis + leading as i32)
        .collect();
    expanded(values, &gone)
}

/// `array` combined with `values`, which broadcast to its shape.
fn combined(array: &Array, values: &Array, change: Change) -> Result<Array> {
    match change {
        Change::Set => values.broadcast_to(array.shape()),
        Change::Add => op!(mlx_add(array, values)),
        Change::Multiply => op!(mlx_multiply(array, values)),
        Change::Maximum => op!(mlx_maximum(array, values)),
        Change::Minimum => op!(mlx_minimum(array, values)),
    }
}

/// `array`, changed in the slices of the plan.
fn region(array: &Array, values: &Array, plan: &Plan, change: Change) -> Result<Array> {
    if plan.whole {
        return combined(array, values, change);
    }
    let (from, to, by) = (&plan.starts, &plan.stops, &plan.strides);
    match change {
        Change::Set => op!(mlx_slice_update(array, values, [from], [to], [by])),
        Change::Add => op!(mlx_slice_update_add(array, values, [from], [to], [by])),
        Change::Multiply => op!(mlx_slice_update_prod(array, values, [from], [to], [by])),
        Change::Maximum => op!(mlx_slice_update_max(array, values, [from], [to], [by])),
        Change::Minimum => op!(mlx_slice_update_min(array, values, [from], [to], [by])),
    }
}

/// `part`, the slices of the plan, changed in the places that its index arrays name.
fn scattered(part: &Array, values: Array, plan: &Plan, change: Change) -> Result<Array> {
    let mut shape = plan.common.clone();
    shape.extend_from_slice(&plan.sliced);
    let leading = plan.common.len();
    for axis in plan.indices.iter().map(|(axis, _)| *axis as usize) {
        shape[leading + axis] = 1;
    }
    let values = values.broadcast_to(&shape)?;
    let axes: Vec<i32> = plan.indices.iter().map(|(axis, _)| *axis).collect();
    let indices: Vec<&Array> = plan.indices.iter().map(|(_, indices)| indices).collect();
    let indices = VectorArray::new(borrowed(&indices))?;
    match change {
        Change::Set => op!(mlx_scatter(part, indices, values, [axes])),
        Change::Add => op!(mlx_scatter_add(part, indices, values, [axes])),
        Change::Multiply => op!(mlx_scatter_prod(part, indices, values, [axes])),
        Change::Maximum => op!(mlx_scatter_max(part, indices, values, [axes])),
        Change::Minimum => op!(mlx_scatter_min(part, indices, values, [axes])),
    }
}
