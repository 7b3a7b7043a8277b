//! Reading by an index.

use super::plan::{Plan, plan};
use crate::array::Array;
use crate::error::Result;
use crate::ffi::{op, vector::VectorArray};
use crate::indexing::IntoIndex;
use crate::ops::{borrowed, zeros};

pub(crate) fn read(array: &Array, index: &impl IntoIndex) -> Result<Array> {
    let plan = plan(c"i", array, index.parts()?, false)?;
    if plan.result.contains(&0) {
        return zeros(&plan.result, array.dtype());
    }
    let part = sliced(array, &plan)?;
    let chosen = match &plan.indices[..] {
        [] => squeezed(part, &plan.gone())?,
        [(axis, indices)] => {
            let dropped = plan.dropped();
            let before = (0..*axis).filter(|axis| !dropped.contains(axis)).count();
            let axis = before as i32;
            let part = squeezed(part, &dropped)?;
            let taken = op!(mlx_take_axis(part, indices, axis))?;
            moved(taken, before, plan.place, plan.common.len())?
        }
        several => {
            let axes: Vec<i32> = several.iter().map(|(axis, _)| *axis).collect();
            let mut sizes = plan.sliced.clone();
            axes.iter().for_each(|&axis| sizes[axis as usize] = 1);
            let indices: Vec<&Array> = several.iter().map(|(_, indices)| indices).collect();
            let indices = VectorArray::new(borrowed(&indices))?;
            let gathered = op!(mlx_gather(part, indices, [axes], [sizes]))?;
            let leading = plan.common.len() as i32;
            let gone: Vec<i32> = plan.gone().iter().map(|axis| axis + leading).collect();
            moved(squeezed(gathered, &gone)?, 0, plan.place, plan.common.len())?
        }
    };
    if plan.news.is_empty() {
        return Ok(chosen);
    }
    op!(mlx_expand_dims_axes(chosen, [plan.news]))
}

/// The slices of the plan.
pub(super) fn sliced(array: &Array, plan: &Plan) -> Result<Array> {
    if plan.whole {
        return Ok(array.clone());
    }
    op!(mlx_slice(
        array,
        [plan.starts],
        [plan.stops],
        [plan.strides]
    ))
}

/// Without these dimensions of size 1.
fn squeezed(array: Array, axes: &[i32]) -> Result<Array> {
    if axes.is_empty() {
        return Ok(array);
    }
    op!(mlx_squeeze_axes(array, [axes]))
}

/// The block of `count` dimensions that begins at `from` moved, so that it begins at `to`; the others keep their order.
pub(super) fn moved(array: Array, from: usize, to: usize, count: usize) -> Result<Array> {
    if from == to || count == 0 {
        return Ok(array);
    }
    let ndim = array.ndim();
    let is_block = |axis: &usize| (from..from + count).contains(axis);
    let mut order: Vec<usize> = (0..ndim).filter(|axis| !is_block(axis)).collect();
    order.splice(to..to, from..from + count);
    let order: Vec<i32> = order.into_iter().map(|axis| axis as i32).collect();
    array.transpose(&order)
}
