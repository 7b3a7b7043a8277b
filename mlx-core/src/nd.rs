//! Arrays of the crate `ndarray`, both ways. Data is copied.

use ndarray::{ArrayBase, Data, Dimension, IxDyn, OwnedRepr};

use crate::array::Array;
use crate::dtype::Element;
use crate::error::{Error, ErrorKind, Result};

/// The elements in row-major order, whatever the layout of `array` is. The feature `ndarray`.
///
/// ```
/// use mlx_core::{Array, ndarray};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = Array::try_from(&ndarray::array![[1.0f32, 2.0], [3.0, 4.0]])?;
/// let sums: ndarray::Array1<f32> = (&x.sum(0, false)?).try_into()?;
/// assert_eq!(sums, ndarray::array![4.0, 6.0]);
/// # Ok(())
/// # }
/// ```
impl<T, S, D> TryFrom<&ArrayBase<S, D>> for Array
where
    T: Element,
    S: Data<Elem = T>,
    D: Dimension,
{
    type Error = Error;

    fn try_from(array: &ArrayBase<S, D>) -> Result<Self> {
        let dense = array.as_standard_layout();
        let elements = dense.as_slice().ok_or_else(|| {
            let message = format!("an ndarray of shape {:?} is not dense", array.shape());
            Error::new(ErrorKind::Invalid, message)
        })?;
        Array::from_slice(elements, array.shape())
    }
}

/// As `TryFrom` of a reference.
impl<T, S, D> TryFrom<ArrayBase<S, D>> for Array
where
    T: Element,
    S: Data<Elem = T>,
    D: Dimension,
{
    type Error = Error;

    fn try_from(array: ArrayBase<S, D>) -> Result<Self> {
        Array::try_from(&array)
    }
}

/// The elements, of any number of dimensions (`ArrayD`) or of a fixed one (`Array2`). Evaluates the array. Fails if the
/// dtype is not that of `T`, or the number of dimensions differs.
impl<T: Element, D: Dimension> TryFrom<&Array> for ArrayBase<OwnedRepr<T>, D> {
    type Error = Error;

    fn try_from(array: &Array) -> Result<Self> {
        let shape: Vec<usize> = array.shape().iter().map(|&size| size as usize).collect();
        let fault = |error: ndarray::ShapeError| {
            let message = format!("an array of shape {:?} for ndarray: {error}", array.shape());
            Error::new(ErrorKind::Shape, message)
        };
        let elements = array.to_vec::<T>()?;
        ndarray::ArrayD::from_shape_vec(IxDyn(&shape), elements)
            .and_then(|array| array.into_dimensionality())
            .map_err(fault)
    }
}
