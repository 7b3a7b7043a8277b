//! [`Cut`]: the part of an array that a rank holds.

use std::ops::Range;

use mlx_core::{Array, Error, ErrorKind, Result};

use super::ranges;

/// Ranges of one axis of an array, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub axis: usize,
    /// The length of the axis in the whole array.
    whole: i32,
    pub ranges: Vec<Range<i32>>,
}

impl Cut {
    /// Ranges of axis `axis` of an array of `shape`.
    pub(crate) fn new(shape: &[i32], axis: usize, ranges: Vec<Range<i32>>) -> Result<Self> {
        let whole = shape.get(axis).copied().unwrap_or(0);
        let is_inside =
            |range: &Range<i32>| 0 <= range.start && range.start < range.end && range.end <= whole;
        if ranges.is_empty() || !ranges.iter().all(is_inside) {
            let message = format!("ranges {ranges:?} of axis {axis} of {shape:?} for a rank");
            return Err(Error::new(ErrorKind::Shape, message));
        }
        Ok(Self {
            axis,
            whole,
            ranges,
        })
    }

    fn len(&self) -> i32 {
        self.ranges
            .iter()
            .map(|range| range.end - range.start)
            .sum()
    }

    /// The shape of the part of an array of `shape`.
    pub(crate) fn shape(&self, shape: &[i32]) -> Result<Vec<i32>> {
        if shape.get(self.axis) != Some(&self.whole) {
            let message = format!("{shape:?} has no axis {} of {}", self.axis, self.whole);
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let mut shape = shape.to_vec();
        shape[self.axis] = self.len();
        Ok(shape)
    }

    /// The shape of the whole array whose part has `shape`.
    pub(crate) fn whole_shape(&self, shape: &[i32]) -> Vec<i32> {
        let mut shape = shape.to_vec();
        shape[self.axis] = self.whole;
        shape
    }

    /// The part of a whole array.
    pub(crate) fn of(&self, array: &Array) -> Result<Array> {
        self.shape(array.shape())?;
        ranges(array, self.axis, &self.ranges)
    }

    /// The cut of an array whose axis has `numerator / denominator` elements for each of this one's.
    ///
    /// # Errors
    /// A range does not begin and end on whole elements.
    pub(crate) fn scaled(&self, numerator: i32, denominator: i32) -> Result<Self> {
        let scale = |n: i32| {
            let product = i64::from(n) * i64::from(numerator);
            (product % i64::from(denominator) == 0)
                .then_some((product / i64::from(denominator)) as i32)
        };
        let range = |range: &Range<i32>| Some(scale(range.start)?..scale(range.end)?);
        let ranges = self.ranges.iter().map(range).collect::<Option<Vec<_>>>();
        match (ranges, scale(self.whole)) {
            (Some(ranges), Some(whole)) => Ok(Self {
                axis: self.axis,
                whole,
                ranges,
            }),
            _ => {
                let message = format!(
                    "the columns {:?} of {} that this rank would hold do not begin and end with groups of packed \
                     weights; use fewer ranks",
                    self.ranges, self.whole
                );
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}
