//! Iteration over the first dimension of an array.

use std::iter::FusedIterator;
use std::ops::Range;

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};

/// The subarrays along an array's first dimension, without that dimension. [`Array::iter`] makes
/// it.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    array: &'a Array,
    left: Range<i32>,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(array: &'a Array) -> Self {
        // A scalar has one item, an error.
        let size = array.shape().first().copied().unwrap_or(1);
        Self {
            array,
            left: 0..size,
        }
    }

    fn row(&self, at: i32) -> Result<Array> {
        if self.array.ndim() == 0 {
            let message = "iter: an array without dimensions has no slots to iterate over";
            return Err(Error::new(ErrorKind::Shape, message));
        }
        self.array.i(at)
    }
}

impl Iterator for Rows<'_> {
    type Item = Result<Array>;

    fn next(&mut self) -> Option<Result<Array>> {
        self.left.next().map(|at| self.row(at))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl DoubleEndedIterator for Rows<'_> {
    fn next_back(&mut self) -> Option<Result<Array>> {
        self.left.next_back().map(|at| self.row(at))
    }
}

impl ExactSizeIterator for Rows<'_> {}

impl FusedIterator for Rows<'_> {}

impl<'a> IntoIterator for &'a Array {
    type Item = Result<Array>;
    type IntoIter = Rows<'a>;

    fn into_iter(self) -> Rows<'a> {
        self.iter()
    }
}
