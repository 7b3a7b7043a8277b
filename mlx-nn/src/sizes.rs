//! [`Sizes`]: one number for each spatial dimension of a window.

use mlx_core::{Error, ErrorKind, Result};

/// A size for each of `N` spatial dimensions. It is made from one number, which holds for all
/// dimensions, an array or a tuple.
///
/// ```
/// use mlx_nn::Sizes;
/// assert_eq!(Sizes::<2>::from(3), Sizes::from((3, 3)));
/// assert_eq!(Sizes::from([1, 2, 3]).0, [1, 2, 3]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes<const N: usize>(pub [i32; N]);

impl<const N: usize> From<i32> for Sizes<N> {
    fn from(size: i32) -> Self {
        Self([size; N])
    }
}

impl<const N: usize> From<[i32; N]> for Sizes<N> {
    fn from(sizes: [i32; N]) -> Self {
        Self(sizes)
    }
}

impl From<(i32, i32)> for Sizes<2> {
    fn from((a, b): (i32, i32)) -> Self {
        Self([a, b])
    }
}

impl From<(i32, i32, i32)> for Sizes<3> {
    fn from((a, b, c): (i32, i32, i32)) -> Self {
        Self([a, b, c])
    }
}

/// Refuses a number below 1.
pub(crate) fn check_positive(layer: &str, what: &str, numbers: &[i32]) -> Result<()> {
    check_least(layer, what, numbers, 1)
}

/// Refuses a number below `least`.
pub(crate) fn check_least(layer: &str, what: &str, numbers: &[i32], least: i32) -> Result<()> {
    match numbers.iter().find(|&&number| number < least) {
        None => Ok(()),
        Some(number) => Err(Error::new(
            ErrorKind::Invalid,
            format!("{layer}: {what} must be at least {least}, given {number}"),
        )),
    }
}

/// Refuses an epsilon that is not a number above 0.
pub(crate) fn check_eps(layer: &str, eps: f32) -> Result<()> {
    if eps.is_finite() && eps > 0.0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!("{layer}: eps must be a number above 0, given {eps}"),
    ))
}

/// An error about an input's shape.
pub(crate) fn misshapen(layer: &str, expected: &str, found: &[i32]) -> Error {
    Error::new(
        ErrorKind::Shape,
        format!("{layer}: expected an input {expected}, found {found:?}"),
    )
}
