//! [`Sizes`], one number for each spatial dimension of a window, and the checks of a layer's settings.

use mlx_core::{Error, ErrorKind, Result};

pub use mlx_core::Sizes;

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
