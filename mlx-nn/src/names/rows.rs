//! [`Rows`]: how the rows of one matrix divide into the rows of several.

use mlx_core::ops::concat;
use mlx_core::{Array, Result};

/// The rows of a fused matrix. The matrix has `groups` groups of equal size, and each group holds
/// the rows of every part in turn. With one group the parts follow each other: q, then k, then v.
/// With as many groups as heads, the rows are q, k and v head by head. With as many groups as an
/// MLP has features, and one row for each part, gate and up alternate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// The number of groups.
    pub groups: i32,
    /// The rows of each part in a group. For a tensor with fewer rows, such as scales of blocks, only the proportions
    /// matter.
    pub parts: Vec<i32>,
    /// Whether the rows are the first axis, as the channels of a convolution are.
    pub first: bool,
}

impl Rows {
    /// The axis of rows in an array with `ndim` axes: the last but one for matrices, their scales and stacks of them,
    /// and the last for a bias.
    pub fn axis(&self, is_bias: bool, ndim: usize) -> usize {
        match self.first {
            true => 0,
            false => ndim.saturating_sub(if is_bias { 1 } else { 2 }),
        }
    }

    /// The first row of each part of a group, and the end of the last part, for an axis of `n`
    /// rows. `None` if `n` does not divide into the parts.
    fn bounds(&self, n: i32) -> Option<Vec<i32>> {
        let whole: i64 = self.parts.iter().map(|&rows| i64::from(rows)).sum();
        if whole == 0 || n % self.groups != 0 {
            return None;
        }
        let group = i64::from(n / self.groups);
        let mut bounds = vec![0];
        let mut rows = 0;
        for &part in &self.parts {
            if (i64::from(part) * group) % whole != 0 {
                return None;
            }
            rows += i64::from(part) * group / whole;
            bounds.push(rows as i32);
        }
        Some(bounds)
    }

    /// The shape of part `part` of an array of `shape`.
    pub fn part_shape(&self, shape: &[i32], axis: usize, part: usize) -> Option<Vec<i32>> {
        let bounds = self.bounds(*shape.get(axis)?)?;
        let mut shape = shape.to_vec();
        shape[axis] = (bounds[part + 1] - bounds[part]) * self.groups;
        Some(shape)
    }

    /// The rows of part `part`.
    pub fn split(&self, array: &Array, axis: usize, part: usize) -> Result<Array> {
        let shape = array.shape().to_vec();
        let bounds = self.bounds(shape[axis]).expect("the shape was checked");
        let (begin, end) = (bounds[part], bounds[part + 1]);
        if self.groups == 1 {
            return array.slice_axis(axis as i32, begin, end);
        }
        let grouped = self.grouped(array, axis)?;
        let rows = grouped.slice_axis(axis as i32 + 1, begin, end)?;
        let shape = self.part_shape(&shape, axis, part).expect("as above");
        rows.reshape(&shape)
    }

    /// The matrix with these parts, in order.
    pub fn join(&self, parts: &[Array], axis: usize) -> Result<Array> {
        if self.groups == 1 {
            return concat(parts, axis as i32);
        }
        let grouped = parts.iter().map(|part| self.grouped(part, axis));
        let joined = concat(&grouped.collect::<Result<Vec<_>>>()?, axis as i32 + 1)?;
        let mut shape = joined.shape().to_vec();
        let rows = shape.remove(axis + 1);
        shape[axis] *= rows;
        joined.reshape(&shape)
    }

    /// `[.., rows, ..] -> [.., groups, rows / groups, ..]`
    fn grouped(&self, array: &Array, axis: usize) -> Result<Array> {
        let mut shape = array.shape().to_vec();
        shape.insert(axis + 1, shape[axis] / self.groups);
        shape[axis] = self.groups;
        array.reshape(&shape)
    }
}
