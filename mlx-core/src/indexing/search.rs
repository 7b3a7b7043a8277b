//! Where an array is not zero, what a mask selects, and which values there are.

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Opt, op};
use crate::memory;
use crate::ops::{Operand, concat, full, ones, require, zeros};

/// The values of an array, each once. [`Array::unique_of_size`] and [`Array::unique_all`] make it.
#[derive(Clone, Debug)]
pub struct Unique {
    /// The values, sorted: `[size]`.
    pub values: Array,
    /// The position of the first of each in the flattened array, as U32: `[size]`.
    pub index: Array,
    /// For each element, the position of its value in `values`, as U32, in the shape of the array.
    pub inverse: Array,
    /// How often each value occurs, as I32: `[size]`.
    pub counts: Array,
}

/// The error for an array whose elements decide about a shape and cannot be read.
fn unread(name: &str, error: Error) -> Error {
    error.context(format_args!(
        "{name}: the elements decide about the shape of the result, so the array is evaluated"
    ))
}

pub(crate) fn nonzero(array: &Array) -> Result<Vec<Array>> {
    let fits = u32::try_from(array.size()).is_ok();
    require(
        fits,
        "nonzero",
        "the array",
        "of fewer than 2^32 elements",
        array,
    )?;
    let truth = array.astype(DType::Bool)?;
    let shape = array.shape();
    let find = |truth: &[bool]| -> Result<Vec<u32>> {
        let mut places = Vec::new();
        memory::reserve(&mut places, truth.iter().filter(|truth| **truth).count())?;
        let found = truth.iter().enumerate().filter(|(_, truth)| **truth);
        places.extend(found.map(|(at, _)| at as u32));
        Ok(places)
    };
    let places = truth.with_slice(find);
    let places = places.map_err(|error| unread("nonzero", error))??;
    let mut rest = places;
    let mut found = Vec::with_capacity(shape.len());
    for &size in shape.iter().rev() {
        let size = size as u32;
        let along: Vec<u32> = rest.iter().map(|at| at % size).collect();
        rest.iter_mut().for_each(|at| *at /= size);
        found.push(Array::from_slice(&along, along.len())?);
    }
    found.reverse();
    Ok(found)
}

pub(crate) fn masked_select(array: &Array, mask: &Array) -> Result<Array> {
    require(
        mask.dtype() == DType::Bool,
        "masked_select",
        "the mask",
        "of Bool",
        mask,
    )?;
    array.i(&mask.broadcast_to(array.shape())?)
}

/// The flattened elements and the positions that sort them. For each element in sorted order,
/// `group` has the number of its value, from 0 on, and `is_first` whether it is the first with that
/// value.
struct Sorted {
    flat: Array,
    order: Array,
    group: Array,
    is_first: Array,
}

fn sorted(array: &Array) -> Result<Sorted> {
    let flat = array.reshape(-1)?;
    // MLX sorts Bool on CPUs only.
    let order = match flat.dtype() {
        DType::Bool => op!(mlx_argsort_axis(flat.astype(DType::U8)?, 0))?,
        _ => op!(mlx_argsort_axis(flat, 0))?,
    };
    let elements = op!(mlx_take_axis(flat, order, 0))?;
    let n = flat.dim(0)?;
    let changes = elements
        .slice_axis(0, 1, n)?
        .not_equal(elements.slice_axis(0, 0, n - 1)?)?;
    let is_first = concat(&[ones(1, DType::Bool)?, changes], 0)?;
    let numbers = is_first.astype(DType::I32)?;
    let group = op!(mlx_cumsum_axis(numbers, 0, false, true, Opt(None::<DType>)))?.subtract(1)?;
    Ok(Sorted {
        flat,
        order,
        group,
        is_first,
    })
}

pub(crate) fn unique_all(array: &Array) -> Result<Unique> {
    if array.size() == 0 {
        return unique_of_size(array, 0, None::<f32>);
    }
    let sorted = sorted(array)?;
    let number = sorted.is_first.astype(DType::I32)?.sum(.., false)?;
    let number: i32 = number.item().map_err(|error| unread("unique", error))?;
    grouped(array, &sorted, number, None::<f32>)
}

pub(crate) fn unique_of_size(
    array: &Array,
    size: i32,
    fill: Option<impl Operand>,
) -> Result<Unique> {
    let fits = (0..i32::MAX).contains(&size);
    require(
        fits,
        "unique_of_size",
        "size",
        "at least 0 and below 2^31 - 1",
        size,
    )?;
    if array.size() > 0 {
        return grouped(array, &sorted(array)?, size, fill);
    }
    let values = match fill {
        Some(fill) => full(size, fill, array.dtype())?,
        None if size == 0 => zeros(0, array.dtype())?,
        None => {
            let message = "unique_of_size: an empty array has no value to fill with: give one";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
    };
    Ok(Unique {
        values,
        index: zeros(size, DType::U32)?,
        inverse: zeros(array.shape(), DType::U32)?,
        counts: zeros(size, DType::I32)?,
    })
}

fn grouped(
    array: &Array,
    sorted: &Sorted,
    size: i32,
    fill: Option<impl Operand>,
) -> Result<Unique> {
    let Sorted {
        flat, order, group, ..
    } = sorted;
    // Values beyond `size` share a last slot, which is cut off.
    let slot = group.minimum(size)?;
    let cut = |slots: Array| slots.slice_axis(0, 0, size);
    let counts = cut(zeros(size + 1, DType::I32)?.at(&slot).add(1)?)?;
    let most = full(size + 1, u32::MAX, DType::U32)?;
    let least = cut(most.at(&slot).min(order)?)?;
    let first = order.slice_axis(0, 0, 1)?;
    let exists = counts.greater(0)?;
    let index = exists.select(least, &first)?;
    let fill = match fill {
        Some(fill) => fill.operand(array)?.astype(array.dtype())?.reshape(1)?,
        None => op!(mlx_take_axis(flat, first, 0))?,
    };
    let values = exists.select(op!(mlx_take_axis(flat, index, 0))?, fill)?;
    let last = (size - 1).max(0);
    let group = group.minimum(last)?.astype(DType::U32)?;
    let inverse = op!(mlx_put_along_axis(
        zeros(order.shape(), DType::U32)?,
        order,
        group,
        0
    ))?;
    Ok(Unique {
        values,
        index,
        inverse: inverse.reshape(array.shape())?,
        counts,
    })
}
